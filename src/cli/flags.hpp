// SPDX-License-Identifier: Apache-2.0
// A verb's flags: declared once, used to parse, to print help, and to write completions and man
// pages.
//
// CLI11 does the parsing; it and its exceptions stay in flags.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <holdfast/result.hpp>

namespace holdfast::cli {

/// What a value names, for completion.
enum class Completes : std::uint8_t { nothing, file, job, node, words };

struct FlagInfo {
    std::string short_name;  ///< "-N" or empty
    std::string long_name;   ///< "--nodes" or empty
    std::string value;       ///< "N"; empty: takes none
    std::string help;
    Completes completes = Completes::nothing;
    std::vector<std::string> words;
    bool common = false;  ///< the same in every verb: help shows it on a line of its own
};

struct PositionalInfo {
    std::string name;
    std::string help;
    bool required = true;
    bool many = false;
    Completes completes = Completes::nothing;
    std::vector<std::string> words;
};

class Flags {
  public:
    Flags();
    ~Flags();
    Flags(const Flags&) = delete;
    Flags& operator=(const Flags&) = delete;

    /// `names`: "-N,--nodes". The values live as long as the Flags.
    FlagInfo& text(const std::string& names, std::optional<std::string>& into,
                   const std::string& value, const std::string& help);
    /// May be given several times.
    FlagInfo& list(const std::string& names, std::vector<std::string>& into,
                   const std::string& value, const std::string& help);
    FlagInfo& flag(const std::string& names, bool& into, const std::string& help);
    FlagInfo& integer(const std::string& names, std::int64_t& into, std::int64_t low,
                      std::int64_t high, const std::string& value, const std::string& help);
    PositionalInfo& positional(const std::string& name, std::optional<std::string>& into,
                               const std::string& help);
    PositionalInfo& positionals(const std::string& name, std::vector<std::string>& into,
                                const std::string& help);
    /// Everything after `--`, untouched. `name` is for the usage line: "[-- ARG…]".
    void rest(const std::string& name, std::vector<std::string>& into);

    /// Errors: invalid_argument; `where` names the flag, `hint` the nearest one that exists.
    Result<> parse(std::vector<std::string> arguments);

    [[nodiscard]] const std::vector<std::unique_ptr<FlagInfo>>& flags() const { return flags_; }

    [[nodiscard]] const std::vector<std::unique_ptr<PositionalInfo>>& positionals() const {
        return positionals_;
    }

    [[nodiscard]] const std::string& rest_name() const { return rest_name_; }

  private:
    struct Parser;
    FlagInfo& declare(const std::string& names, const std::string& value, const std::string& help);
    Result<> refuse_unknown(const std::vector<std::string>& arguments) const;

    std::unique_ptr<Parser> parser_;
    std::vector<std::unique_ptr<FlagInfo>> flags_;
    std::vector<std::unique_ptr<PositionalInfo>> positionals_;
    std::vector<std::function<Result<>()>> checks_;
    std::string rest_name_;
    std::vector<std::string>* rest_ = nullptr;
};

}  // namespace holdfast::cli
