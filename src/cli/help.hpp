// SPDX-License-Identifier: Apache-2.0
// Help, completions and the man page, all written from the table of verbs.
#pragma once

#include <string>

#include <holdfast/result.hpp>

#include "verb.hpp"

namespace holdfast::cli {

/// `hold --help`: every verb on a line.
std::string program_help();
/// `hold VERB --help`; fits a screen.
std::string verb_help(const Verb& verb);
/// `hold node --help`: the verbs that begin with the word.
std::string family_help(const std::string& first_word);

/// Declares a verb's flags and those that it shares with others.
Command declare_all(const Verb& verb, Flags& flags, Session& session);

/// Errors: invalid_argument naming the shells.
Result<std::string> completion_script(const std::string& shell);
/// hold(1) as roff.
std::string man_page();
/// A page for a program whose help text is given: hold-server(8), hold-agent(8).
std::string man_page_of(const std::string& program, const std::string& summary,
                        const std::string& help_text);

}  // namespace holdfast::cli
