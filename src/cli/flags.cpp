// SPDX-License-Identifier: Apache-2.0
#include "flags.hpp"

#include <algorithm>

#include <CLI/CLI.hpp>

#include "text.hpp"

namespace holdfast::cli {

struct Flags::Parser {
    CLI::App app;
};

Flags::Flags() : parser_(std::make_unique<Parser>()) {
    parser_->app.set_help_flag();  // --help is ours: see app.cpp
}

Flags::~Flags() = default;

FlagInfo& Flags::declare(const std::string& names, const std::string& value,
                         const std::string& help) {
    auto info = std::make_unique<FlagInfo>();
    for (const std::string_view name : split(names, ',')) {
        (name.starts_with("--") ? info->long_name : info->short_name) = std::string(name);
    }
    info->value = value;
    info->help = help;
    flags_.push_back(std::move(info));
    return *flags_.back();
}

FlagInfo& Flags::text(const std::string& names, std::optional<std::string>& into,
                      const std::string& value, const std::string& help) {
    parser_->app.add_option(names, into)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    return declare(names, value, help);
}

FlagInfo& Flags::list(const std::string& names, std::vector<std::string>& into,
                      const std::string& value, const std::string& help) {
    parser_->app.add_option(names, into)
        ->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    return declare(names, value, help);
}

FlagInfo& Flags::flag(const std::string& names, bool& into, const std::string& help) {
    parser_->app.add_flag_callback(names, [&into] { into = true; });
    return declare(names, "", help);
}

FlagInfo& Flags::integer(const std::string& names, std::int64_t& into, std::int64_t low,
                         std::int64_t high, const std::string& value, const std::string& help) {
    auto given = std::make_shared<std::optional<std::string>>();
    FlagInfo& info = text(names, *given, value, help);
    checks_.push_back([given, &into, low, high, &info]() -> Result<> {
        if (given->has_value()) {
            auto number = parse_integer(**given, low, high);
            if (!number) {
                return fail(std::move(number).error().at(info.long_name));
            }
            into = *number;
        }
        return {};
    });
    return info;
}

PositionalInfo& Flags::positional(const std::string& name, std::optional<std::string>& into,
                                  const std::string& help) {
    parser_->app.add_option(name, into);
    positionals_.push_back(std::make_unique<PositionalInfo>());
    positionals_.back()->name = name;
    positionals_.back()->help = help;
    checks_.push_back([&into, info = positionals_.back().get()]() -> Result<> {
        if (info->required && !into.has_value()) {
            return fail(Errc::invalid_argument, "{} is missing", info->name);
        }
        return {};
    });
    return *positionals_.back();
}

PositionalInfo& Flags::positionals(const std::string& name, std::vector<std::string>& into,
                                   const std::string& help) {
    parser_->app.add_option(name, into);
    positionals_.push_back(std::make_unique<PositionalInfo>());
    positionals_.back()->name = name;
    positionals_.back()->help = help;
    positionals_.back()->many = true;
    checks_.push_back([&into, info = positionals_.back().get()]() -> Result<> {
        if (info->required && into.empty()) {
            return fail(Errc::invalid_argument, "{} is missing", info->name);
        }
        return {};
    });
    return *positionals_.back();
}

void Flags::rest(const std::string& name, std::vector<std::string>& into) {
    rest_name_ = name;
    rest_ = &into;
}

/// The words that CLI11 did not know, as an error about the first of them.
Result<> Flags::refuse_unknown(const std::vector<std::string>& arguments) const {
    if (arguments.empty()) {
        return {};
    }
    const std::string& word = arguments.front();
    if (!word.starts_with("-") || word == "-") {
        return fail(make_error(Errc::invalid_argument, "unexpected argument `{}`", printable(word))
                        .at(printable(word)));
    }
    const std::string name = word.substr(0, word.find('='));
    std::vector<std::string> known = {"--help"};
    for (const auto& info : flags_) {
        known.push_back(info->long_name.empty() ? info->short_name : info->long_name);
    }
    return fail(make_error(Errc::invalid_argument, "unknown flag `{}`", printable(name))
                    .at(printable(name))
                    .advise(did_you_mean(name, known)));
}

Result<> Flags::parse(std::vector<std::string> arguments) {
    if (rest_ != nullptr) {
        const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
        if (dashes != arguments.end()) {
            rest_->assign(dashes + 1, arguments.end());
            arguments.erase(dashes, arguments.end());
        }
    }
    try {
        parser_->app.allow_extras();
        std::reverse(arguments.begin(), arguments.end());  // CLI11 takes words from the back
        parser_->app.parse(std::move(arguments));
    } catch (const CLI::ArgumentMismatch& error) {
        return fail(Errc::invalid_argument, "{}", printable(error.what()));
    } catch (const CLI::Error& error) {
        return fail(Errc::invalid_argument, "{}", printable(error.what()));
    }
    HOLD_TRY(refuse_unknown(parser_->app.remaining()));
    for (const auto& check : checks_) {
        HOLD_TRY(check());
    }
    return {};
}

}  // namespace holdfast::cli
