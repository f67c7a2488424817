"""A package of what this machine has, so that the library's own recipe can be exercised offline.

conan create found --name eigen|nlohmann_json|kokkos --version <its version>, with the folder of its headers in the
environment variable TURBOQUANT_FOUND_INCLUDE and, for Kokkos, that of its libraries in TURBOQUANT_FOUND_LIB.
"""

import os

from conan import ConanFile
from conan.tools.files import copy

TARGETS = {
    "eigen": ("Eigen3", "Eigen3::Eigen"),
    "nlohmann_json": ("nlohmann_json", "nlohmann_json::nlohmann_json"),
    "kokkos": ("Kokkos", "Kokkos::kokkos"),
}


class FoundConan(ConanFile):
    settings = "os", "arch", "compiler", "build_type"

    def package(self):
        include = os.environ["TURBOQUANT_FOUND_INCLUDE"]
        for pattern in {"eigen": ["Eigen/*"], "nlohmann_json": ["nlohmann/*"], "kokkos": ["*"]}[self.name]:
            copy(self, pattern, include, os.path.join(self.package_folder, "include"))
        if self.name == "kokkos":
            copy(self, "libkokkos*", os.environ["TURBOQUANT_FOUND_LIB"], os.path.join(self.package_folder, "lib"))

    def package_info(self):
        file_name, target = TARGETS[self.name]
        self.cpp_info.set_property("cmake_file_name", file_name)
        self.cpp_info.set_property("cmake_target_name", target)
        self.cpp_info.libs = ["kokkoscontainers", "kokkoscore"] if self.name == "kokkos" else []
        if self.name == "kokkos":
            self.cpp_info.cxxflags = ["-fopenmp"]
            self.cpp_info.exelinkflags = ["-fopenmp"]
            self.cpp_info.system_libs = ["dl", "pthread"]
