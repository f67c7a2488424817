// Nothing: its headers are what counts (CMakeLists.txt of tests).
