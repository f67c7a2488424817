#pragma once

// What the command-line programs have in common: exit codes, messages of one line, and outputs that
// are known to have been written.

#include <turboquant/base/error.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace program {

inline constexpr int no_output = 1;
inline constexpr int wrong_input = 2;

/// An output that cannot be written.
class OutputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Everything printed so far is really written.
/// @throws OutputError
inline void flush_output() {
  const bool streams = std::cout.flush().good();
  if (!streams || std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw OutputError("standard output cannot be written");
  }
}

/// A file that an option names.
class OutputFile {
 public:
  /// @param option such as "--json"
  /// @param path   empty: there is none
  OutputFile(std::string option, std::string path)
      : option_(std::move(option)), path_(std::move(path)) {}

  [[nodiscard]] bool wanted() const noexcept { return !path_.empty(); }

  /// @throws std::invalid_argument if it is the file `input`, by whatever links
  void require_not(const std::filesystem::path& input) const {
    std::error_code absent;
    if (wanted() && std::filesystem::equivalent(path_, input, absent)) {
      throw std::invalid_argument(option_ + " " + path_ +
                                  ": is an input file, expected another one");
    }
  }
  /// @throws std::invalid_argument if both are one file
  void require_not(const OutputFile& other) const {
    std::error_code ignored;
    if (wanted() && other.wanted() &&
        std::filesystem::weakly_canonical(path_, ignored) ==
            std::filesystem::weakly_canonical(other.path_, ignored)) {
      throw std::invalid_argument(option_ + " and " + other.option_ + " are both " + path_ +
                                  ", expected two files");
    }
  }
  /// Before the work begins; what was there stays, and nothing else comes.
  /// @throws OutputError
  void require_writable() const {
    std::error_code ignored;
    const bool existed = std::filesystem::exists(path_, ignored);
    if (wanted() && !std::ofstream(path_, std::ios::app)) {
      throw OutputError(option_ + " " + path_ + ": cannot be opened for writing");
    }
    if (wanted() && !existed) {
      std::filesystem::remove(path_, ignored);
    }
  }
  /// Calls `write(stream)` with the empty file.
  /// @throws OutputError
  template <class Write>
  void write(const Write& write) const {
    std::ofstream stream(path_, std::ios::binary | std::ios::trunc);
    write(stream);
    if (!stream.flush()) {
      throw OutputError(option_ + " " + path_ + ": cannot be written");
    }
  }

 private:
  std::string option_;
  std::string path_;
};

/// @throws std::invalid_argument if other options than `alone` are given
inline void require_alone(const CLI::App& app, const CLI::Option* alone) {
  for (const CLI::Option* const option : app.get_options()) {
    if (option != alone && option->count() > 0) {
      throw std::invalid_argument(alone->get_name() + " is given with " + option->get_name() +
                                  ", expected no other argument");
    }
  }
}

/// Calls what writes a file of an output.
/// @throws OutputError for its errors
template <class Write>
void write_output(const Write& write) {
  try {
    write();
  } catch (const turboquant::Error& error) {
    throw OutputError(error.what());
  }
}

/// `message` on one line, whatever names it quotes.
[[nodiscard]] inline std::string one_line(std::string message) {
  std::replace_if(
      message.begin(), message.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, '?');
  return message;
}

/// Parses the arguments and does the work of a program. Errors are one line on stderr.
/// @param name of the program, in messages
/// @param work called with the arguments in place
/// @return exit code: 0; 2 for wrong input or arguments; 1 for an output that cannot be written
template <class Work>
[[nodiscard]] int run(std::string_view name, CLI::App& app, int argc, char** argv,
                      const Work& work) {
  const auto complain = [&](const std::string& message, int code) {
    std::cerr << name << ": " << one_line(message) << '\n';
    return code;
  };
  try {
    try {
      app.parse(argc, argv);
      work();
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() != 0) {
        return complain(std::string(error.what()) + " (--help lists the arguments)", wrong_input);
      }
      app.exit(error);  // prints what was asked for
    }
    flush_output();
  } catch (const OutputError& error) {
    return complain(error.what(), no_output);
  } catch (const std::bad_alloc&) {
    return complain("not enough memory", wrong_input);
  } catch (const std::exception& error) {
    return complain(error.what(), wrong_input);
  }
  return 0;
}

}  // namespace program
