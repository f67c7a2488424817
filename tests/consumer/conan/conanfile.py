import os

from conan import ConanFile
from conan.tools.build import can_run
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout


class TurboQuantTestConan(ConanFile):
    settings = "os", "arch", "compiler", "build_type"

    def layout(self):
        # In the repository's ignored build folder, not beside this file.
        cmake_layout(self, build_folder="../../../build/conan")

    def requirements(self):
        self.requires(self.tested_reference_str)

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        toolchain.user_presets_path = False
        options = self.dependencies["turboquant"].options
        toolchain.cache_variables["WITH_HF"] = bool(options.get_safe("with_hf"))
        toolchain.cache_variables["WITH_KOKKOS"] = bool(options.get_safe("with_kokkos"))
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def test(self):
        if can_run(self):
            self.run(os.path.join(self.cpp.build.bindir, "consumer"), env="conanrun")
