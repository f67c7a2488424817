#pragma once

/// @file
/// Reads tensors from a safetensors file; the format is described in safetensors_header.hpp.

#include <turboquant/base/error.hpp>
#include <turboquant/base/float16.hpp>
#include <turboquant/base/regular_file.hpp>
#include <turboquant/io/message_text.hpp>
#include <turboquant/io/safetensors_header.hpp>
#include <turboquant/io/tensor_entry.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace turboquant {

/// An open safetensors file with a checked header. Movable; one thread at a time.
///
/// An object that was moved from has no tensors, and `at` and the reads throw
/// Error(invalid_argument).
///
/// Memory: the header (at most `safetensors_max_header_bytes`) and a buffer of 64 KiB; data goes
/// straight to the caller.
class SafetensorsFile {
 public:
  /// Opens `path` and checks its whole header; no tensor is read.
  /// @throws Error(invalid_argument) for a path that is empty or has a NUL inside, Error(io) when
  ///         the file cannot be opened or read or is not a regular file, Error(format, overflow,
  ///         unsupported or shape_mismatch) when the header is not valid (see
  ///         `parse_safetensors_header`).
  explicit SafetensorsFile(std::string path) : path_(std::move(path)) {
    detail::require_whole_path("SafetensorsFile", path_);
    const std::string why = detail::why_no_regular_file(path_);
    require(why.empty(), ErrorCode::io, path_, ": cannot be opened: ", why);
    std::error_code status;
    const auto file_bytes = static_cast<std::int64_t>(std::filesystem::file_size(path_, status));
    require(!status, ErrorCode::io, path_, ": has no readable size: ", status.message());
    stream_.open(path_, std::ios::binary);
    require(stream_.good(), ErrorCode::io, path_, ": cannot be opened for reading");

    require(file_bytes >= length_bytes, ErrorCode::format, path_, ": holds ", file_bytes,
            " bytes, expected at least the 8 of the header length");
    std::array<unsigned char, 8> field{};
    read_bytes(0, field);
    std::uint64_t length = 0;
    for (std::size_t i = field.size(); i-- > 0;) {
      length = length << 8 | field[i];
    }
    require(length <= static_cast<std::uint64_t>(safetensors_max_header_bytes), ErrorCode::format,
            path_, ": the header length is ", length, ", expected at most ",
            safetensors_max_header_bytes, " (not a safetensors file?)");
    const auto header_bytes = static_cast<std::int64_t>(length);
    require(header_bytes <= file_bytes - length_bytes, ErrorCode::format, path_,
            ": the header is truncated: its length is ", header_bytes, ", but only ",
            file_bytes - length_bytes, " bytes follow");
    std::vector<unsigned char> json(static_cast<std::size_t>(header_bytes));
    read_bytes(length_bytes, json);
    data_begin_ = length_bytes + header_bytes;
    header_ = parse_safetensors_header(
        std::string_view(reinterpret_cast<const char*>(json.data()), json.size()),
        file_bytes - data_begin_, path_);
  }

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// The tensors in the order of their bytes.
  [[nodiscard]] std::span<const TensorEntry> tensors() const noexcept { return header_.tensors; }

  [[nodiscard]] const std::map<std::string, std::string>& metadata() const noexcept {
    return header_.metadata;
  }

  /// The tensor of that name, or null. O(number of tensors).
  [[nodiscard]] const TensorEntry* find(std::string_view name) const noexcept {
    const auto found = std::find_if(header_.tensors.begin(), header_.tensors.end(),
                                    [&](const TensorEntry& entry) { return entry.name == name; });
    return found == header_.tensors.end() ? nullptr : &*found;
  }

  /// The tensor of that name.
  /// @throws Error(out_of_range) when there is none.
  [[nodiscard]] const TensorEntry& at(std::string_view name) const {
    require(stream_.is_open(), ErrorCode::invalid_argument,
            "SafetensorsFile: was moved from and holds no file, expected an open one to look for "
            "tensor ",
            detail::in_quotes(name));
    const TensorEntry* const entry = find(name);
    require(entry != nullptr, ErrorCode::out_of_range, path_, ": has no tensor ",
            detail::in_quotes(name));
    return *entry;
  }

  /// Reads a tensor of type F32, F16 or BF16 as floats; exact.
  ///
  /// The file is read twice: a tensor with a NaN or an infinity leaves `out` as it was.
  /// @param out  [num_elements], row-major as in the file
  /// @throws Error(out_of_range) for an unknown name, Error(unsupported) for another type,
  ///         Error(shape_mismatch) for another size of `out`, Error(non_finite) naming the first
  ///         such element, Error(io) when the file cannot be read any more.
  void read_floats(std::string_view name, std::span<float> out) {
    const TensorEntry& entry = at(name);
    if (entry.type.name == "F32") {
      read_as<4>(entry, out, [](std::uint64_t bits) {
        return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
      });
    } else if (entry.type.name == "F16") {
      read_as<2>(entry, out, [](std::uint64_t bits) {
        return float16{static_cast<std::uint16_t>(bits)}.to_float();
      });
    } else {
      require(entry.type.name == "BF16", ErrorCode::unsupported, path_, ": tensor ",
              detail::in_quotes(entry.name), " has dtype ", entry.type.name,
              ", expected F32, F16 or BF16");
      read_as<2>(entry, out, [](std::uint64_t bits) {
        return bfloat16{static_cast<std::uint16_t>(bits)}.to_float();
      });
    }
  }

  /// Reads a tensor of type I64.
  /// @param out  [num_elements], row-major as in the file
  /// @throws Error(out_of_range) for an unknown name, Error(unsupported) for another type,
  ///         Error(shape_mismatch) for another size of `out`, Error(io) when the file cannot be
  ///         read any more.
  void read_integers(std::string_view name, std::span<std::int64_t> out) {
    const TensorEntry& entry = at(name);
    require(entry.type.name == "I64", ErrorCode::unsupported, path_, ": tensor ",
            detail::in_quotes(entry.name), " has dtype ", entry.type.name, ", expected I64");
    read_as<8>(entry, out, [](std::uint64_t bits) { return static_cast<std::int64_t>(bits); });
  }

 private:
  static constexpr std::int64_t length_bytes = 8;
  static constexpr std::size_t chunk_bytes = std::size_t{1} << 16;

  void read_bytes(std::int64_t position, std::span<unsigned char> out) {
    stream_.clear();
    stream_.seekg(position);
    stream_.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(out.size()));
    require(out.empty() || stream_.good(), ErrorCode::io, path_, ": ", out.size(), " bytes at ",
            position, " cannot be read");
  }

  /// Passes over the elements twice: first to check them, then to write them.
  template <std::size_t element_bytes, class Out, class Convert>
  void read_as(const TensorEntry& entry, std::span<Out> out, Convert convert) {
    require(static_cast<std::int64_t>(out.size()) == entry.num_elements, ErrorCode::shape_mismatch,
            path_, ": tensor ", detail::in_quotes(entry.name), " has ", entry.num_elements,
            " elements, but out.size() is ", out.size());
    constexpr std::size_t chunk = chunk_bytes / element_bytes;
    std::vector<unsigned char> bytes((std::min)(out.size(), chunk) * element_bytes);
    for (const bool write : {false, true}) {
      for (std::size_t done = 0; done < out.size(); done += chunk) {
        const std::size_t count = (std::min)(chunk, out.size() - done);
        read_bytes(data_begin_ + entry.begin + static_cast<std::int64_t>(done * element_bytes),
                   std::span(bytes).first(count * element_bytes));
        for (std::size_t i = 0; i < count; ++i) {
          std::uint64_t bits = 0;
          for (std::size_t byte = element_bytes; byte-- > 0;) {
            bits = bits << 8 | bytes[i * element_bytes + byte];
          }
          const Out value = convert(bits);
          if (write) {
            out[done + i] = value;
          } else if constexpr (std::is_floating_point_v<Out>) {
            require((std::isfinite)(value), ErrorCode::non_finite, path_, ": tensor ",
                    detail::in_quotes(entry.name), " is ", (std::isnan)(value) ? "NaN" : "infinite",
                    " at index ", detail::shape_text(index_of(entry, done + i)),
                    ", expected finite numbers");
          }
        }
      }
    }
  }

  [[nodiscard]] static std::vector<std::int64_t> index_of(const TensorEntry& entry,
                                                          std::size_t flat) {
    std::vector<std::int64_t> index(entry.shape.size());
    auto rest = static_cast<std::int64_t>(flat);
    for (std::size_t axis = index.size(); axis-- > 0;) {
      index[axis] = rest % entry.shape[axis];
      rest /= entry.shape[axis];
    }
    return index;
  }

  std::string path_;
  std::ifstream stream_;
  std::int64_t data_begin_ = 0;
  SafetensorsHeader header_;
};

}  // namespace turboquant
