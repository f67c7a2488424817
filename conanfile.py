"""Conan 2 recipe: conan create . --build=missing

Header-only: one package serves all settings. Components are the CMake targets TurboQuant::core,
TurboQuant::hf (option with_hf) and TurboQuant::turboquant (option with_kokkos). The test package is in
tests/consumer/conan; tests/consumer/run.cmake exercises the recipe offline, with packages made from what the
build found on the machine. The requirements' own recipes in a remote were not exercised.
"""

import os

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, rmdir

required_conan_version = ">=2.1"


class TurboQuantConan(ConanFile):
    name = "turboquant"
    version = "0.1.0"
    description = "Compressed KV caches for language models: header-only C++20"
    license = "Apache-2.0"
    topics = ("kv-cache", "attention", "quantization", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"with_hf": [True, False], "with_kokkos": [True, False]}
    default_options = {"with_hf": True, "with_kokkos": False}
    exports_sources = "CMakeLists.txt", "LICENSE", "cmake/*.cmake", "cmake/*.in", "include/*"
    test_package_folder = "tests/consumer/conan"

    def layout(self):
        cmake_layout(self)

    def requirements(self):
        self.requires("eigen/[>=3.4 <6]", transitive_headers=True)
        if self.options.with_hf:
            self.requires("nlohmann_json/[>=3.10 <4]", transitive_headers=True)
        if self.options.with_kokkos:
            self.requires("kokkos/[>=3.4 <6]", transitive_headers=True, transitive_libs=True)

    def package_id(self):
        # The settings make no difference; the options choose the components.
        self.info.settings.clear()

    def validate(self):
        check_min_cppstd(self, 20)
        if self.settings.arch in ("x86", "armv7", "armv7hf", "wasm"):
            raise ConanInvalidConfiguration("TurboQuant needs 64-bit sizes")

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["TURBOQUANT_HF"] = bool(self.options.with_hf)
        toolchain.cache_variables["TURBOQUANT_KOKKOS"] = bool(self.options.with_kokkos)
        for part in ("TESTS", "EXAMPLES", "BENCH"):
            toolchain.cache_variables["TURBOQUANT_BUILD_" + part] = False
        toolchain.generate()

    def build(self):
        # Shows that everything a component needs is found; nothing is compiled.
        CMake(self).configure()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        # CMakeDeps writes the package configuration for the packages that are really in use.
        for folder in ("lib", "share"):
            rmdir(self, os.path.join(self.package_folder, folder))

    def package_info(self):
        self.cpp_info.set_property("cmake_file_name", "TurboQuant")
        # While the major version is 0, a minor version may change the interface.
        self.cpp_info.set_property("cmake_config_version_compat", "SameMinorVersion")
        self._component("core", ["eigen::eigen"])
        if self.settings.os in ("Linux", "FreeBSD"):
            self.cpp_info.components["core"].system_libs = ["pthread"]
        everything = ["core"]
        if self.options.with_hf:
            self._component("hf", ["core", "nlohmann_json::nlohmann_json"])
            everything.append("hf")
        if self.options.with_kokkos:
            self._component("turboquant", everything + ["kokkos::kokkos"])

    def _component(self, name, requires):
        component = self.cpp_info.components[name]
        component.set_property("cmake_target_name", "TurboQuant::" + name)
        component.requires = requires
        component.bindirs = []
        component.libdirs = []
