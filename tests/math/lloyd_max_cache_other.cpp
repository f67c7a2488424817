#include <turboquant/math/lloyd_max.hpp>

#include <memory>

namespace turboquant::test {

std::shared_ptr<const LloydMaxCodebook> lloyd_max_elsewhere(int dim, int bits);

std::shared_ptr<const LloydMaxCodebook> lloyd_max_elsewhere(int dim, int bits) {
  return lloyd_max(dim, bits);
}

}  // namespace turboquant::test
