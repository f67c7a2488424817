#include <turboquant/base/config.hpp>
#include <turboquant/math/haar_rotation.hpp>
#include <turboquant/math/lloyd_max.hpp>

int main() {
  return turboquant::lloyd_max(64, 3).codebook.levels() == 8 ? 0 : 1;
}
