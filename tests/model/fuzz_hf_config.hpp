#pragma once

#include <cstddef>
#include <cstdint>

/// libFuzzer entry point: any bytes either give a consistent model or one `Error`.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
