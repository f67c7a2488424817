#pragma once

// A file in memory, read-only. It must not be cut short by others while it is open.

#include <turboquant/base/error.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <utility>

namespace llama_ab {

class MappedFile {
 public:
  /// @throws turboquant::Error(io) for what is no regular file that can be read
  explicit MappedFile(const std::string& path) {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    turboquant::require(descriptor >= 0, turboquant::ErrorCode::io, path,
                        ": cannot be opened: ", std::strerror(errno));
    struct stat status {};
    const bool regular = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
    bytes_ = regular ? static_cast<std::size_t>(status.st_size) : 0;
    if (bytes_ > 0) {
      data_ = ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    }
    ::close(descriptor);
    turboquant::require(regular, turboquant::ErrorCode::io, path, ": is not a regular file");
    turboquant::require(bytes_ > 0, turboquant::ErrorCode::format, path, ": is empty");
    turboquant::require(data_ != MAP_FAILED, turboquant::ErrorCode::io, path,
                        ": cannot be mapped: ", std::strerror(errno));
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() {
    if (data_ != nullptr && data_ != MAP_FAILED) {
      ::munmap(data_, bytes_);
    }
  }

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
    return {static_cast<const std::byte*>(data_), bytes_};
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace llama_ab
