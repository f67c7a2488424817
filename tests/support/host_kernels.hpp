#pragma once

// The host's kernels are compiled for all tests once, in host_kernels.cpp.

#include <turboquant/device/arch/select.hpp>

extern template struct turboquant::HostKernels<>;
