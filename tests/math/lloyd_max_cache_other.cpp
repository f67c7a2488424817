#include <turboquant/math/lloyd_max.hpp>

namespace turboquant::test {

const LloydMaxCodebook& lloyd_max_elsewhere(int dim, int bits);

const LloydMaxCodebook& lloyd_max_elsewhere(int dim, int bits) {
  return lloyd_max(dim, bits);
}

}  // namespace turboquant::test
