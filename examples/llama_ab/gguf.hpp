#pragma once

// Reads GGUF files, version 2 and 3, little-endian: typed metadata and tensors. Nothing in the file
// is believed: every length, count, offset and type is checked against the bytes that are there.

#include "tensor_types.hpp"

#include <turboquant/base/error.hpp>
#include <turboquant/io/message_text.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace llama_ab {

using turboquant::ErrorCode;
using turboquant::require;

static_assert(std::endian::native == std::endian::little, "GGUF numbers are read as they lie");

/// An array of the metadata. Views into the file.
struct GgufArray {
  std::uint32_t type = 0;                 ///< number of the elements' type in the format
  std::vector<std::string_view> strings;  ///< elements where they are strings
  std::vector<std::int64_t> integers;     ///< elements where they are integers or booleans
  std::vector<double> numbers;            ///< elements where they are floating-point
};

using GgufValue =
    std::variant<std::uint64_t, std::int64_t, double, bool, std::string_view, GgufArray>;

/// A tensor of a file.
struct GgufTensor {
  std::string name;
  TensorType type = TensorType::f32;
  std::vector<std::int64_t> shape;  ///< fastest axis first, as in the file
  std::size_t num_elements = 0;
  std::span<const std::byte> bytes;
};

/// The checked contents of a GGUF file; views into its bytes, which must stay.
class GgufFile {
 public:
  static constexpr std::uint64_t max_alignment = std::uint64_t{1} << 20U;

  /// @param name for messages
  /// @throws turboquant::Error(format), Error(unsupported) for anything that is not as it must be
  GgufFile(std::span<const std::byte> bytes, std::string name);

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const std::map<std::string, GgufTensor, std::less<>>& tensors() const noexcept {
    return tensors_;
  }
  [[nodiscard]] const std::map<std::string, GgufValue, std::less<>>& values() const noexcept {
    return values_;
  }
  [[nodiscard]] bool has(std::string_view key) const { return values_.find(key) != values_.end(); }

  /// A metadata value of a given kind: `std::string_view`, `bool`, `GgufArray`.
  /// @throws turboquant::Error(format) where it is missing or of another kind
  template <class T>
  [[nodiscard]] const T& get(std::string_view key) const {
    const GgufValue& value = find(key);
    require(std::holds_alternative<T>(value), ErrorCode::format, name_, ": ",
            turboquant::detail::in_quotes(key), " has another type than expected");
    return std::get<T>(value);
  }
  /// A metadata integer between two bounds.
  [[nodiscard]] std::int64_t integer(std::string_view key, std::int64_t least,
                                     std::int64_t most) const {
    const GgufValue& value = find(key);
    const auto* const wide = std::get_if<std::uint64_t>(&value);
    const auto* const narrow = std::get_if<std::int64_t>(&value);
    require(wide != nullptr || narrow != nullptr, ErrorCode::format, name_, ": ",
            turboquant::detail::in_quotes(key), " is no integer, expected ", least, " to ", most);
    constexpr auto largest = static_cast<std::uint64_t>(INT64_MAX);
    const bool beyond = wide != nullptr && *wide > largest;
    const std::int64_t number = narrow != nullptr ? *narrow
                                : beyond          ? INT64_MAX
                                                  : static_cast<std::int64_t>(*wide);
    require(!beyond && number >= least && number <= most, ErrorCode::format, name_, ": ",
            turboquant::detail::in_quotes(key), " is ", beyond ? "at least " : "", number,
            ", expected ", least, " to ", most);
    return number;
  }
  /// A finite metadata number.
  [[nodiscard]] double number(std::string_view key) const {
    const double result = get<double>(key);
    require(std::isfinite(result), ErrorCode::format, name_, ": ",
            turboquant::detail::in_quotes(key), " is not finite");
    return result;
  }
  /// A tensor of this shape, fastest axis first.
  /// @throws turboquant::Error(format), Error(shape_mismatch)
  [[nodiscard]] const GgufTensor& tensor(std::string_view key,
                                         const std::vector<std::int64_t>& shape) const {
    const auto found = tensors_.find(key);
    require(found != tensors_.end(), ErrorCode::format, name_, ": has no tensor ",
            turboquant::detail::in_quotes(key));
    require(found->second.shape == shape, ErrorCode::shape_mismatch, name_, ": tensor ",
            turboquant::detail::in_quotes(key), " is ",
            turboquant::detail::shape_text(found->second.shape), ", expected ",
            turboquant::detail::shape_text(shape));
    return found->second;
  }

 private:
  [[nodiscard]] const GgufValue& find(std::string_view key) const {
    const auto found = values_.find(key);
    require(found != values_.end(), ErrorCode::format, name_, ": has no metadata ",
            turboquant::detail::in_quotes(key));
    return found->second;
  }

  std::string name_;
  std::map<std::string, GgufValue, std::less<>> values_;
  std::map<std::string, GgufTensor, std::less<>> tensors_;
};

namespace detail {

/// Reads forward; refuses to leave the bytes.
class GgufCursor {
 public:
  GgufCursor(std::span<const std::byte> bytes, const std::string& name)
      : bytes_(bytes), name_(&name) {}

  [[nodiscard]] std::size_t position() const noexcept { return position_; }
  [[nodiscard]] std::size_t left() const noexcept { return bytes_.size() - position_; }

  template <class T>
  [[nodiscard]] T number(const char* what) {
    static_assert(std::is_arithmetic_v<T>);
    T value{};
    const std::span<const std::byte> from = take(sizeof(T), what);
    std::memcpy(&value, from.data(), sizeof(T));
    return value;
  }
  [[nodiscard]] std::span<const std::byte> take(std::uint64_t count, const char* what) {
    require(count <= left(), ErrorCode::format, *name_, ": ", what, " at byte ", position_,
            " needs ", count, " bytes, but ", left(), " are left");
    const auto result = bytes_.subspan(position_, static_cast<std::size_t>(count));
    position_ += static_cast<std::size_t>(count);
    return result;
  }
  [[nodiscard]] std::string_view text(const char* what) {
    const auto length = number<std::uint64_t>(what);
    const auto from = take(length, what);
    return {reinterpret_cast<const char*>(from.data()), from.size()};
  }
  /// A count of things of which each takes at least `least` bytes.
  [[nodiscard]] std::size_t count(std::size_t least, const char* what) {
    const auto result = number<std::uint64_t>(what);
    require(result <= left() / least, ErrorCode::format, *name_, ": ", what, " is ", result,
            ", expected at most ", left() / least, ", which the bytes left could hold");
    return static_cast<std::size_t>(result);
  }
  [[nodiscard]] bool boolean(const char* what) {
    const auto byte = number<std::uint8_t>(what);
    require(byte <= 1, ErrorCode::format, *name_, ": ", what, " is ", static_cast<int>(byte),
            ", expected 0 or 1 for a boolean");
    return byte == 1;
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string* name_;
  std::size_t position_ = 0;
};

/// Bytes of a number type of the metadata; 0 for strings, arrays and unknown types.
[[nodiscard]] constexpr std::size_t gguf_number_bytes(std::uint32_t type) noexcept {
  constexpr std::size_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < std::size(sizes) ? sizes[type] : 0;
}
inline constexpr std::uint32_t gguf_string = 8;
inline constexpr std::uint32_t gguf_array = 9;

/// One number or boolean.
[[nodiscard]] inline GgufValue read_number(GgufCursor& cursor, std::uint32_t type) {
  constexpr const char* what = "a metadata value";
  switch (type) {
    case 0: return std::uint64_t{cursor.number<std::uint8_t>(what)};
    case 1: return std::int64_t{cursor.number<std::int8_t>(what)};
    case 2: return std::uint64_t{cursor.number<std::uint16_t>(what)};
    case 3: return std::int64_t{cursor.number<std::int16_t>(what)};
    case 4: return std::uint64_t{cursor.number<std::uint32_t>(what)};
    case 5: return std::int64_t{cursor.number<std::int32_t>(what)};
    case 6: return static_cast<double>(cursor.number<float>(what));
    case 7: return cursor.boolean(what);
    case 10: return cursor.number<std::uint64_t>(what);
    case 11: return cursor.number<std::int64_t>(what);
    default: return cursor.number<double>(what);
  }
}

[[nodiscard]] inline GgufValue read_array(GgufCursor& cursor, const std::string& file,
                                          const std::string& key) {
  GgufArray array;
  array.type = cursor.number<std::uint32_t>("the type of an array");
  const std::size_t bytes = gguf_number_bytes(array.type);
  require(bytes > 0 || array.type == gguf_string, ErrorCode::unsupported, file, ": ",
          turboquant::detail::in_quotes(key), " is an array of type ", array.type,
          ", expected numbers, booleans or strings");
  const std::size_t count =
      cursor.count(bytes > 0 ? bytes : sizeof(std::uint64_t), "the length of an array");
  for (std::size_t i = 0; i < count; ++i) {
    if (array.type == gguf_string) {
      array.strings.push_back(cursor.text("a string of an array"));
      continue;
    }
    const GgufValue value = read_number(cursor, array.type);
    if (const auto* const real = std::get_if<double>(&value)) {
      array.numbers.push_back(*real);
    } else if (const auto* const flag = std::get_if<bool>(&value)) {
      array.integers.push_back(*flag ? 1 : 0);
    } else if (const auto* const narrow = std::get_if<std::int64_t>(&value)) {
      array.integers.push_back(*narrow);
    } else {
      const std::uint64_t wide = std::get<std::uint64_t>(value);
      require(wide <= static_cast<std::uint64_t>(INT64_MAX), ErrorCode::format, file, ": ",
              turboquant::detail::in_quotes(key), " holds ", wide, ", expected at most ",
              INT64_MAX);
      array.integers.push_back(static_cast<std::int64_t>(wide));
    }
  }
  return array;
}

}  // namespace detail

inline GgufFile::GgufFile(std::span<const std::byte> bytes, std::string name)
    : name_(std::move(name)) {
  using turboquant::detail::in_quotes;
  detail::GgufCursor cursor(bytes, name_);
  const auto magic = cursor.take(4, "the magic number");
  require(std::memcmp(magic.data(), "GGUF", 4) == 0, ErrorCode::format, name_,
          ": does not start with 'GGUF'");
  const auto version = cursor.number<std::uint32_t>("the version");
  require(version == 2 || version == 3, ErrorCode::unsupported, name_, ": GGUF version is ",
          version, ", expected 2 or 3, little-endian");
  // Bytes of the smallest tensor record (empty name, one axis) and of the smallest pair.
  const std::size_t num_tensors = cursor.count(32, "the number of tensors");
  const std::size_t num_values = cursor.count(13, "the number of metadata pairs");
  for (std::size_t i = 0; i < num_values; ++i) {
    std::string key(cursor.text("a metadata key"));
    const auto type = cursor.number<std::uint32_t>("a metadata type");
    GgufValue value;
    if (type == detail::gguf_string) {
      value = cursor.text("a metadata string");
    } else if (type == detail::gguf_array) {
      value = detail::read_array(cursor, name_, key);
    } else {
      require(detail::gguf_number_bytes(type) > 0, ErrorCode::format, name_, ": ", in_quotes(key),
              " has type ", type, ", expected 0 to 12");
      value = detail::read_number(cursor, type);
    }
    const bool added = values_.emplace(key, std::move(value)).second;
    require(added, ErrorCode::format, name_, ": metadata ", in_quotes(key), " appears twice");
  }
  const std::uint64_t alignment =
      has("general.alignment")
          ? static_cast<std::uint64_t>(
                integer("general.alignment", 8, static_cast<std::int64_t>(max_alignment)))
          : 32;
  require(alignment % 8 == 0, ErrorCode::format, name_, ": 'general.alignment' is ", alignment,
          ", expected a multiple of 8");

  std::vector<std::pair<std::uint64_t, std::uint64_t>> places;  // offset, bytes
  std::vector<GgufTensor*> order;
  for (std::size_t i = 0; i < num_tensors; ++i) {
    GgufTensor tensor;
    tensor.name = cursor.text("a tensor name");
    const auto axes = cursor.number<std::uint32_t>("the number of axes");
    require(axes >= 1 && axes <= 4, ErrorCode::format, name_, ": tensor ", in_quotes(tensor.name),
            " has ", axes, " axes, expected 1 to 4");
    std::uint64_t elements = 1;
    for (std::uint32_t axis = 0; axis < axes; ++axis) {
      const auto extent = cursor.number<std::uint64_t>("an extent");
      require(extent >= 1 && extent <= (std::uint64_t{1} << 48U) / elements, ErrorCode::format,
              name_, ": tensor ", in_quotes(tensor.name), " has extent ", extent, " of axis ", axis,
              ", expected 1 or more and at most 2^48 elements in all");
      elements *= extent;
      tensor.shape.push_back(static_cast<std::int64_t>(extent));
    }
    tensor.num_elements = static_cast<std::size_t>(elements);
    const auto type = cursor.number<std::uint32_t>("a tensor type");
    const TensorTypeTraits* const traits = find_tensor_type(type);
    require(traits != nullptr, ErrorCode::unsupported, name_, ": tensor ", in_quotes(tensor.name),
            " has type ", type, ", expected F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K or Q6_K");
    require(static_cast<std::uint64_t>(tensor.shape[0]) % traits->block_numbers == 0,
            ErrorCode::format, name_, ": tensor ", in_quotes(tensor.name), " has rows of ",
            tensor.shape[0], " numbers, expected a multiple of ", traits->block_numbers, " for ",
            traits->name);
    tensor.type = traits->type;
    const auto offset = cursor.number<std::uint64_t>("a tensor offset");
    require(offset % alignment == 0, ErrorCode::format, name_, ": tensor ", in_quotes(tensor.name),
            " is at offset ", offset, ", expected a multiple of ", alignment);
    places.emplace_back(offset, elements / traits->block_numbers * traits->block_bytes);
    std::string key = tensor.name;
    const auto [at, added] = tensors_.emplace(std::move(key), std::move(tensor));
    require(added, ErrorCode::format, name_, ": tensor ", in_quotes(at->first), " appears twice");
    order.push_back(&at->second);
  }

  const std::uint64_t begin = (cursor.position() + alignment - 1) / alignment * alignment;
  const std::uint64_t room = begin <= bytes.size() ? bytes.size() - begin : 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto [offset, size] = places[i];
    require(offset <= room && size <= room - offset, ErrorCode::format, name_, ": tensor ",
            in_quotes(order[i]->name), " takes bytes ", offset, " to ", offset + size,
            " of the data, of which there are ", room);
    order[i]->bytes =
        bytes.subspan(static_cast<std::size_t>(begin + offset), static_cast<std::size_t>(size));
  }
  std::sort(places.begin(), places.end());
  for (std::size_t i = 1; i < places.size(); ++i) {
    require(places[i - 1].first + places[i - 1].second <= places[i].first, ErrorCode::format, name_,
            ": two tensors overlap at offset ", places[i].first, " of the data");
  }
}

}  // namespace llama_ab
