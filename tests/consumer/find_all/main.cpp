#include <turboquant/turboquant.hpp>

int main() {
  const turboquant::KokkosScope kokkos;
  turboquant::require_initialized("consumer");
  return turboquant::lloyd_max(64, 3).codebook.levels() == 8 ? 0 : 1;
}
