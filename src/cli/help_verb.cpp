// SPDX-License-Identifier: Apache-2.0
#include "help.hpp"
#include "text.hpp"
#include "verbs.hpp"

namespace holdfast::cli {
namespace {

constexpr std::size_t kHelpBytesMax = 64 << 10;

struct Options {
    std::vector<std::string> words;
    bool man = false;
};

/// A page for `hold`, or for a program whose --help stands on the standard input.
Result<std::string> page(Session& session, const Options& options) {
    if (options.words.empty()) {
        return man_page();
    }
    for (const Verb& verb : all_verbs()) {
        if (verb.neighbour == options.words.front()) {
            HOLD_TRY(const std::string text, session.around.read_input(kHelpBytesMax));
            return man_page_of(verb.neighbour, verb.summary, text);
        }
    }
    return fail(make_error(Errc::not_found, "no man page of `{}`", printable(options.words.front()))
                    .advise("choose hold-server or hold-agent, or leave the name out"));
}

Result<std::string> help_text(Session& session, const Options& options) {
    if (options.man) {
        return page(session, options);
    }
    if (options.words.empty()) {
        return program_help();
    }
    const std::string name = fmt::format("{}", fmt::join(options.words, " "));
    if (const Verb* verb = find_verb(name); verb != nullptr) {
        return verb_help(*verb);
    }
    std::vector<std::string> known;
    for (const Verb& verb : all_verbs()) {
        if (options.words.size() == 1 && verb.name.starts_with(name + " ")) {
            return family_help(name);
        }
        known.push_back(verb.name);
    }
    return fail(make_error(Errc::not_found, "no verb `{}`", printable(name))
                    .advise(did_you_mean(name, known)));
}

}  // namespace

Verb help_verb() {
    return {.name = "help",
            .summary = "explains the program or a verb",
            .group = "About",
            .needs_server = false,
            .declare = [](Flags& flags) -> Command {
                auto options = std::make_shared<Options>();
                flags.positionals("VERB", options->words, "such as jobs, or node drain").required =
                    false;
                flags.flag("--man", options->man, "the man page, as roff");
                return [options](Session& session) -> Result<int> {
                    HOLD_TRY(const std::string text, help_text(session, *options));
                    HOLD_TRY(session.around.out.write(text));
                    return 0;
                };
            },
            .examples = {"hold help node drain", "hold help --man | man -l -"},
            .notes =
                "With --man and the name of a neighbour (hold-server, hold-agent), that "
                "program's --help is read from the standard input and becomes its page."};
}

}  // namespace holdfast::cli
