// SPDX-License-Identifier: Apache-2.0
// What a verb is, and what it runs with.
//
// To add one: write its file with a function that returns the Verb, name it in verbs.cpp. Help,
// completion and the man page follow from the table.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <holdfast/env.hpp>
#include <holdfast/result.hpp>

#include "client.hpp"
#include "flags.hpp"
#include "output.hpp"

namespace holdfast::cli {

/// The streams and the machine that a run of `hold` uses; tests give their own.
struct Surroundings {
    Env& env;
    Stream& out;
    Stream& err;
    /// Text of the standard input, at most `bytes_max` bytes.
    std::function<Result<std::string>(std::size_t bytes_max)> read_input;
    /// Replaces this process; returns only with an error.
    std::function<Error(const std::string& path, const std::vector<std::string>& arguments)>
        replace_process;
};

class Session {
  public:
    explicit Session(Surroundings& surroundings) : around(surroundings) {}

    /// Connects on first use.
    Result<Client*> client();
    /// A line for the person at the terminal, on stderr: progress, hints, warnings.
    void note(std::string_view text);

    [[nodiscard]] std::int64_t now_us() { return around.env.clock.wall_us(); }

    Surroundings& around;
    OutputOptions output;
    ServerFlags server;
    std::string verb;  ///< "node drain"

  private:
    std::unique_ptr<Client> client_;
};

/// Runs the parsed verb; the value is the exit status.
using Command = std::function<Result<int>(Session&)>;

enum class Prints : std::uint8_t {
    text,    ///< text of its own: no output flags
    object,  ///< -o and --json
    list,    ///< -o, --json, --no-headers, --sort
};

struct Verb {
    std::string name = {};     ///< one word, or two: "node drain"
    std::string summary = {};  ///< a sentence without its full stop
    std::string group = {};    ///< heading in `hold help`
    Prints prints = Prints::text;
    bool needs_server = true;  ///< --server, --token-file, --ca
    /// Declares flags and returns what runs after parsing; options live in the closure.
    std::function<Command(Flags&)> declare = {};
    std::string neighbour = {};  ///< set: a program of libexec runs instead, with all arguments
    std::array<std::string, 2> examples = {};
    std::string notes = {};  ///< for the man page: a paragraph, may be empty
};

}  // namespace holdfast::cli
