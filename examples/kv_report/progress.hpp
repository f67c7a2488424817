#pragma once

// A progress bar on stderr, drawn only when stderr is a terminal.

#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <mutex>
#include <string>

namespace kv_report {

/// Counts finished tasks; `advance` may be called from any thread.
class Progress {
 public:
  Progress(const char* label, std::size_t total)
      : label_(label), total_(total), visible_(isatty(fileno(stderr)) != 0) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() {
    if (visible_) {
      std::fputs("\r\033[K", stderr);
    }
  }

  void advance() {
    if (!visible_) {
      return;
    }
    const std::scoped_lock lock(mutex_);
    ++done_;
    const std::size_t filled = done_ * width / total_;
    if (filled != drawn_) {
      drawn_ = filled;
      const std::string bar = std::string(filled, '#') + std::string(width - filled, '.');
      std::fprintf(stderr, "\r%s [%s] %zu/%zu", label_, bar.c_str(), done_, total_);
      std::fflush(stderr);
    }
  }

 private:
  static constexpr std::size_t width = 40;

  const char* label_;
  std::size_t total_;
  bool visible_;
  std::mutex mutex_;
  std::size_t done_ = 0;
  std::size_t drawn_ = width + 1;
};

}  // namespace kv_report
