#include "everything.hpp"
