#include "quant/encoded_bytes.hpp"
