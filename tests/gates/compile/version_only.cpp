#include <turboquant/base/config.hpp>
