#pragma once

/// @file
/// What compute capability 9.0 adds, as functions of one lane: bulk copies into shared memory that
/// a barrier counts, clusters of blocks that write to each other's shared memory, kernels that
/// start before the one before them has ended. For every other compilation they are empty.

#include <turboquant/device/arch/cuda_mma_instructions.hpp>

#include <cstddef>

namespace turboquant::detail::cuda {

/// Blocks of a cluster at most, beyond what is portable.
inline constexpr int most_cluster_blocks = 16;

/// A byte of shared memory, of this block or of one of its cluster.
struct SharedAddress {
  Word at = 0;

  friend KOKKOS_FORCEINLINE_FUNCTION SharedAddress operator+(SharedAddress base, int bytes) {
    return {base.at + static_cast<Word>(bytes)};
  }
};

#if TURBOQUANT_CUDA_SM90

KOKKOS_FORCEINLINE_FUNCTION SharedAddress shared_address(const void* at) {
  return {static_cast<Word>(__cvta_generic_to_shared(at))};
}

KOKKOS_FORCEINLINE_FUNCTION void load_4_words(SharedAddress from, Word* out) {
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3},[%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(from.at));
}
KOKKOS_FORCEINLINE_FUNCTION void load_2_words(SharedAddress from, Word* out) {
  asm volatile("ld.shared.v2.u32 {%0,%1},[%2];" : "=r"(out[0]), "=r"(out[1]) : "r"(from.at));
}
KOKKOS_FORCEINLINE_FUNCTION void load_1_word(SharedAddress from, Word* out) {
  asm volatile("ld.shared.u32 %0,[%1];" : "=r"(out[0]) : "r"(from.at));
}

/// Makes a barrier (8 bytes) that one arrival and the bytes announced with it complete.
KOKKOS_FORCEINLINE_FUNCTION void make_copy_barrier(SharedAddress barrier) {
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" : : "r"(barrier.at) : "memory");
}
/// Shows new barriers to the copy engine, and to blocks of the cluster that wait for this thread.
KOKKOS_FORCEINLINE_FUNCTION void publish_copy_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
}
/// Arrives at a barrier and announces the bytes of all copies of its phase; one lane calls it.
/// Copies that other lanes have started before are counted, too.
KOKKOS_FORCEINLINE_FUNCTION void announce_copies(int bytes, SharedAddress barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
               :
               : "r"(barrier.at), "r"(bytes)
               : "memory");
}
/// Starts a copy of `bytes` (a multiple of 16) from global memory; one lane calls it.
KOKKOS_FORCEINLINE_FUNCTION void start_copy(SharedAddress to, const std::byte* from, int bytes,
                                            SharedAddress barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      :
      : "r"(to.at), "l"(from), "r"(bytes), "r"(barrier.at)
      : "memory");
}
/// Waits for the copies of a phase: 0, 1, 0 and so on.
KOKKOS_FORCEINLINE_FUNCTION void await_copy(SharedAddress barrier, Word phase) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "WAIT%=: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@done bra DONE%=;\nbra WAIT%=;\nDONE%=:\n}"
      :
      : "r"(barrier.at), "r"(phase)
      : "memory");
}

KOKKOS_FORCEINLINE_FUNCTION int cluster_rank() {
  Word rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
KOKKOS_FORCEINLINE_FUNCTION int cluster_blocks() {
  Word blocks;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return static_cast<int>(blocks);
}
/// Tells the cluster that this thread has come here.
KOKKOS_FORCEINLINE_FUNCTION void arrive_at_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" : : : "memory");
}
/// Waits until all threads of the cluster have told so, and sees the barriers they have published.
KOKKOS_FORCEINLINE_FUNCTION void await_cluster() {
  asm volatile("barrier.cluster.wait.aligned;" : : : "memory");
}
/// The same byte in the shared memory of block `rank` of the cluster.
KOKKOS_FORCEINLINE_FUNCTION SharedAddress in_block(SharedAddress own, int rank) {
  SharedAddress there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there.at) : "r"(own.at), "r"(rank));
  return there;
}
/// Sends two floats to a block of the cluster, whose barrier counts their 8 bytes.
KOKKOS_FORCEINLINE_FUNCTION void send_pair(SharedAddress to, FloatPair pair,
                                           SharedAddress barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1,%2}, [%3];"
      :
      : "r"(to.at), "f"(pair.first), "f"(pair.second), "r"(barrier.at)
      : "memory");
}
/// Waits for all that the cluster sends in the first phase of a barrier.
KOKKOS_FORCEINLINE_FUNCTION void await_sent(SharedAddress barrier) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "WAIT%=: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
      "@done bra DONE%=;\nbra WAIT%=;\nDONE%=:\n}"
      :
      : "r"(barrier.at)
      : "memory");
}

/// Waits until everything before this kernel has ended and is visible; then the next kernel may be
/// put in place, where it waits in turn.
KOKKOS_FORCEINLINE_FUNCTION void await_earlier_kernels() {
  asm volatile("griddepcontrol.wait;" : : : "memory");
  asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
}

#else

KOKKOS_FORCEINLINE_FUNCTION SharedAddress shared_address(const void*) {
  return {};
}
KOKKOS_FORCEINLINE_FUNCTION void load_4_words(SharedAddress, Word*) {}
KOKKOS_FORCEINLINE_FUNCTION void load_2_words(SharedAddress, Word*) {}
KOKKOS_FORCEINLINE_FUNCTION void load_1_word(SharedAddress, Word*) {}
KOKKOS_FORCEINLINE_FUNCTION void make_copy_barrier(SharedAddress) {}
KOKKOS_FORCEINLINE_FUNCTION void publish_copy_barriers() {}
KOKKOS_FORCEINLINE_FUNCTION void announce_copies(int, SharedAddress) {}
KOKKOS_FORCEINLINE_FUNCTION void start_copy(SharedAddress, const std::byte*, int, SharedAddress) {}
KOKKOS_FORCEINLINE_FUNCTION void await_copy(SharedAddress, Word) {}
KOKKOS_FORCEINLINE_FUNCTION int cluster_rank() {
  return 0;
}
KOKKOS_FORCEINLINE_FUNCTION int cluster_blocks() {
  return 1;
}
KOKKOS_FORCEINLINE_FUNCTION void arrive_at_cluster() {}
KOKKOS_FORCEINLINE_FUNCTION void await_cluster() {}
KOKKOS_FORCEINLINE_FUNCTION SharedAddress in_block(SharedAddress own, int) {
  return own;
}
KOKKOS_FORCEINLINE_FUNCTION void send_pair(SharedAddress, FloatPair, SharedAddress) {}
KOKKOS_FORCEINLINE_FUNCTION void await_sent(SharedAddress) {}
KOKKOS_FORCEINLINE_FUNCTION void await_earlier_kernels() {}

#endif

}  // namespace turboquant::detail::cuda
