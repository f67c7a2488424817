#pragma once

namespace turboquant {

/// Which number multiplies a vector's levels. With y the rotated vector and q its levels (unit
/// variance), it is
enum class ScaleRule {
  plain,  ///< |y| / sqrt(dim), for levels of a stretched codebook divided by the stretch: Algorithm
          ///< 1 as published; shrinks inner products by 1 - D_mse
  unit,   ///< |y| / |q|: the decoded vector has the length of the original ("norm correction")
  least_squares,  ///< <y,q> / |q|^2: smallest squared error
  unbiased,       ///< |y|^2 / <y,q>: the expectation of <v, decoded x> over rotations is <v, x> for
                  ///< every v
};

}  // namespace turboquant
