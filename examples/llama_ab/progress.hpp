#pragma once

// Tokens done, tokens per second and time left, on stderr when that is a terminal.

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

namespace llama_ab {

/// Seconds since it was made.
class Stopwatch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

class Progress {
 public:
  Progress(std::string label, std::int64_t total_tokens)
      : label_(std::move(label)), total_(total_tokens), visible_(isatty(fileno(stderr)) != 0) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() {
    if (visible_) {
      std::fputs("\r\033[K", stderr);
    }
  }

  void advance(std::int64_t tokens) {
    done_ += tokens;
    const double seconds = watch_.seconds();
    if (!visible_ || seconds < shown_ + 0.2) {
      return;
    }
    shown_ = seconds;
    const double rate = static_cast<double>(done_) / seconds;
    const double left = static_cast<double>(total_ - done_) / rate;
    std::fprintf(stderr, "\r%s: %lld of %lld tokens, %.0f tokens/s, %.0f s left\033[K",
                 label_.c_str(), static_cast<long long>(done_), static_cast<long long>(total_),
                 rate, left > 0 ? left : 0.0);
    std::fflush(stderr);
  }

 private:
  std::string label_;
  std::int64_t total_;
  bool visible_;
  Stopwatch watch_;
  std::int64_t done_ = 0;
  double shown_ = 0;
};

}  // namespace llama_ab
