// SPDX-License-Identifier: Apache-2.0
#include "help.hpp"

#include <algorithm>
#include <memory>

#include "text.hpp"
#include "verbs.hpp"

namespace holdfast::cli {
namespace {

constexpr std::size_t kLineWidth = 100;

/// "-N, --nodes N"
std::string flag_names(const FlagInfo& flag) {
    std::string text = flag.short_name;
    if (!flag.long_name.empty()) {
        text += text.empty() ? "    " + flag.long_name : ", " + flag.long_name;
    }
    return flag.value.empty() ? text : text + " " + flag.value;
}

std::string usage_line(const Verb& verb, const Flags& flags) {
    std::string text = "usage: hold " + verb.name;
    if (!verb.neighbour.empty()) {
        return text + " [FLAGS]";
    }
    text += flags.flags().empty() ? "" : " [FLAGS]";
    for (const auto& positional : flags.positionals()) {
        const std::string name = positional->name + (positional->many ? "…" : "");
        text += positional->required ? " " + name : " [" + name + "]";
    }
    return flags.rest_name().empty() ? text : text + " " + flags.rest_name();
}

/// Every flag of a verb, parsed by nobody: for help, completion and man pages.
struct Described {
    explicit Described(const Verb& verb) {
        if (verb.declare) {
            command = declare_all(verb, flags, session);
        }
    }

    static Surroundings& nowhere() {
        static StringStream stream;
        static Surroundings around{real_env(), stream, stream, nullptr, nullptr};
        return around;
    }

    Flags flags;
    Session session{nowhere()};
    Command command;
};

/// "a, b, c" in lines of at most kLineWidth, each with this indent.
std::string wrapped(const std::vector<std::string>& items, const std::string& head) {
    std::string text;
    std::string line = head;
    for (std::size_t i = 0; i < items.size(); ++i) {
        const std::string item = items[i] + (i + 1 == items.size() ? "" : ",");
        if (display_width(line) + 1 + display_width(item) > kLineWidth) {
            text += line + "\n";
            line = std::string(head.size(), ' ');
        }
        line += " " + item;
    }
    return text + line + "\n";
}

}  // namespace

Command declare_all(const Verb& verb, Flags& flags, Session& session) {
    struct Shared {
        std::optional<std::string> format;
        bool json = false;
        bool no_headers = false;
        std::optional<std::string> sort;
    };

    const Command command = verb.declare(flags);
    auto shared = std::make_shared<Shared>();
    const std::size_t own = flags.flags().size();
    if (verb.prints != Prints::text) {
        FlagInfo& format = flags.text("-o,--output", shared->format, "FORMAT",
                                      "table, wide, json, yaml, csv or name");
        format.completes = Completes::words;
        format.words = {"table", "wide", "json", "yaml", "csv", "name"};
        flags.flag("--json", shared->json, "the same as -o json");
    }
    if (verb.prints == Prints::list) {
        flags.flag("--no-headers", shared->no_headers, "no line of column names");
        flags.text("--sort", shared->sort, "COLUMN", "sort by it; -COLUMN: descending");
    }
    if (verb.needs_server) {
        flags.text("--server", session.server.server, "ENDPOINT",
                   "unix:/path or host:port; else HOLDFAST_SERVER");
        flags
            .text("--token-file", session.server.token_file, "FILE",
                  "your token, for TCP; else HOLDFAST_TOKEN_FILE")
            .completes = Completes::file;
        flags
            .text("--ca", session.server.ca, "FILE",
                  "the server's CA certificate, for TCP; else HOLDFAST_CA")
            .completes = Completes::file;
    }
    for (std::size_t i = own; i < flags.flags().size(); ++i) {
        flags.flags()[i]->common = true;
    }
    return [command, shared](Session& running) -> Result<int> {
        OutputOptions& output = running.output;
        if (shared->format) {
            HOLD_TRY(output.format, format_from(*shared->format));
        }
        if (shared->json) {
            output.format = Format::json;
        }
        output.headers = !shared->no_headers;
        output.sort = shared->sort.value_or("");
        output.colour = running.around.out.is_terminal() &&
                        !environment_variable("NO_COLOR").has_value() && output.is_for_people();
        return command(running);
    };
}

// ------------------------------------------------------------------------------------------- help

std::string program_help() {
    std::string text =
        "hold: an operating system for GPU training clusters\n\nusage: hold VERB [FLAGS]\n";
    std::string group;
    for (const Verb& verb : all_verbs()) {
        if (verb.group != group) {
            group = verb.group;
            text += fmt::format("\n{}:\n", group);
        }
        text += fmt::format("  {:<15} {}\n", verb.name, verb.summary);
    }
    return text +
           "\n`hold VERB --help` explains a verb. The server is found by --server or "
           "HOLDFAST_SERVER.\n";
}

std::string family_help(const std::string& first_word) {
    std::string text = fmt::format("usage: hold {} VERB [FLAGS]\n\n", first_word);
    for (const Verb& verb : all_verbs()) {
        if (verb.name.starts_with(first_word + " ")) {
            text += fmt::format("  {:<15} {}\n", verb.name, verb.summary);
        }
    }
    return text;
}

std::string verb_help(const Verb& verb) {
    const Described described(verb);
    const Flags& flags = described.flags;
    std::string text =
        fmt::format("{}\n\nhold {}: {}\n\n", usage_line(verb, flags), verb.name, verb.summary);
    std::size_t width = 0;
    for (const auto& flag : flags.flags()) {
        width = flag->common ? width : std::max(width, display_width(flag_names(*flag)));
    }
    for (const auto& positional : flags.positionals()) {
        width = std::max(width, display_width(positional->name));
    }
    for (const auto& positional : flags.positionals()) {
        text += fmt::format("  {:<{}}  {}\n", positional->name, width, positional->help);
    }
    std::vector<std::string> common;
    for (const auto& flag : flags.flags()) {
        if (flag->common) {
            common.push_back(std::string(trim(flag_names(*flag))));
        } else {
            text += fmt::format("  {:<{}}  {}\n", flag_names(*flag), width, flag->help);
        }
    }
    if (!common.empty()) {
        text += wrapped(common, "  also:");
    }
    return text + fmt::format("\nexamples:\n  {}\n  {}\n", verb.examples[0], verb.examples[1]);
}

// -------------------------------------------------------------------------------------- completion

namespace {

std::vector<std::string> flag_words(const Flags& flags) {
    std::vector<std::string> words = {"--help"};
    for (const auto& flag : flags.flags()) {
        for (const std::string& name : {flag->long_name, flag->short_name}) {
            if (!name.empty()) {
                words.push_back(name);
            }
        }
    }
    return words;
}

Completes completes_of(const Flags& flags) {
    return flags.positionals().empty() ? Completes::nothing : flags.positionals()[0]->completes;
}

std::vector<std::string> words_of(const Flags& flags) {
    return flags.positionals().empty() ? std::vector<std::string>() : flags.positionals()[0]->words;
}

/// The first words, each once.
std::vector<std::string> first_words() {
    std::vector<std::string> words;
    for (const Verb& verb : all_verbs()) {
        const std::string word = verb.name.substr(0, verb.name.find(' '));
        if (words.empty() || words.back() != word) {
            words.push_back(word);
        }
    }
    return words;
}

std::vector<std::string> second_words(const std::string& first) {
    std::vector<std::string> words;
    for (const Verb& verb : all_verbs()) {
        if (verb.name.starts_with(first + " ")) {
            words.push_back(verb.name.substr(first.size() + 1));
        }
    }
    return words;
}

/// The command that lists what a positional may be, as a shell writes it in $(…).
std::string lister(Completes completes) {
    switch (completes) {
        case Completes::job:
            return "hold jobs -o name 2>/dev/null";
        case Completes::node:
            return "hold nodes -o name 2>/dev/null";
        default:
            return "";
    }
}

/// Cases of a bash function: for each verb, its flags and what its words may be.
std::string bash_cases() {
    std::string cases;
    for (const Verb& verb : all_verbs()) {
        const Described described(verb);
        const std::string list = lister(completes_of(described.flags));
        std::string words = fmt::format("{}", fmt::join(words_of(described.flags), " "));
        if (!list.empty()) {
            words = "$(" + list + ")";
        }
        const bool files = completes_of(described.flags) == Completes::file;
        cases += fmt::format("        \"{}\") flags=\"{}\"; words=\"{}\"; files={} ;;\n", verb.name,
                             fmt::join(flag_words(described.flags), " "), words, files ? 1 : 0);
    }
    return cases;
}

std::string bash_script() {
    std::string families;
    for (const std::string& word : first_words()) {
        if (find_verb(word) == nullptr) {
            families += fmt::format("        {}) seconds=\"{}\" ;;\n", word,
                                    fmt::join(second_words(word), " "));
        }
    }
    return fmt::format(
        R"(# Completion of hold for bash: source <(hold completion bash)
_hold() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
    local verb="${{COMP_WORDS[1]}}" seconds="" flags="" words="" files=0
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{}" -- "$current"))
        return
    fi
    case "$verb" in
{}    esac
    if [ -n "$seconds" ]; then
        if [ "$COMP_CWORD" -eq 2 ]; then
            COMPREPLY=($(compgen -W "$seconds" -- "$current"))
            return
        fi
        verb="$verb ${{COMP_WORDS[2]}}"
    fi
    case "$previous" in
        -o|--output)
            COMPREPLY=($(compgen -W "table wide json yaml csv name" -- "$current")); return ;;
        --token-file|--ca|--file) COMPREPLY=($(compgen -f -- "$current")); return ;;
    esac
    case "$verb" in
{}    esac
    case "$current" in
        -*) COMPREPLY=($(compgen -W "$flags" -- "$current")) ;;
        *)
            COMPREPLY=($(compgen -W "$words" -- "$current"))
            if [ "$files" -eq 1 ]; then
                COMPREPLY+=($(compgen -f -- "$current"))
            fi
            ;;
    esac
}}
complete -F _hold hold
)",
        fmt::join(first_words(), " "), families, bash_cases());
}

/// A word in single quotes, for zsh and fish.
std::string single_quoted(std::string_view text) {
    std::string answer = "'";
    for (const char c : text) {
        answer += c == '\'' ? std::string("'\\''") : std::string(1, c);
    }
    return answer + "'";
}

std::string zsh_script() {
    std::string verbs;
    std::string cases;
    for (const Verb& verb : all_verbs()) {
        const Described described(verb);
        const std::string list = lister(completes_of(described.flags));
        std::string words = list.empty()
                                ? fmt::format("{}", fmt::join(words_of(described.flags), " "))
                                : "${(f)\"$(" + list + ")\"}";
        cases += fmt::format("        {}) flags=({}); words_of=({}); files={} ;;\n",
                             single_quoted(verb.name), fmt::join(flag_words(described.flags), " "),
                             words, completes_of(described.flags) == Completes::file ? 1 : 0);
    }
    std::string families;
    for (const std::string& word : first_words()) {
        const Verb* verb = find_verb(word);
        verbs += fmt::format("        {}\n",
                             single_quoted(word + ":" + (verb ? verb->summary : "see hold help")));
        if (verb == nullptr) {
            families += fmt::format("        {}) seconds=({}) ;;\n", word,
                                    fmt::join(second_words(word), " "));
        }
    }
    return fmt::format(
        R"(#compdef hold
# Completion of hold for zsh: source <(hold completion zsh)
_hold() {{
    local -a verbs seconds flags words_of
    local verb files=0
    verbs=(
{}    )
    if (( CURRENT == 2 )); then
        _describe 'verb' verbs
        return
    fi
    verb=$words[2]
    case $verb in
{}    esac
    if (( $#seconds )); then
        if (( CURRENT == 3 )); then
            compadd -a seconds
            return
        fi
        verb="$verb $words[3]"
    fi
    case $words[CURRENT-1] in
        -o|--output) compadd table wide json yaml csv name; return ;;
        --token-file|--ca|--file) _files; return ;;
    esac
    case $verb in
{}    esac
    if [[ $words[CURRENT] == -* ]]; then
        compadd -a flags
    else
        compadd -a words_of
        (( files )) && _files
    fi
}}
compdef _hold hold
)",
        verbs, families, cases);
}

std::string fish_script() {
    std::string text =
        "# Completion of hold for fish: hold completion fish | source\ncomplete -c hold -f\n";
    for (const std::string& word : first_words()) {
        const Verb* verb = find_verb(word);
        text += fmt::format("complete -c hold -n __fish_use_subcommand -a {} -d {}\n", word,
                            single_quoted(verb ? verb->summary : "see hold help"));
    }
    for (const Verb& verb : all_verbs()) {
        const Described described(verb);
        const auto blank = verb.name.find(' ');
        std::string condition = "__fish_seen_subcommand_from " + verb.name.substr(0, blank);
        if (blank != std::string::npos) {
            const std::string second = verb.name.substr(blank + 1);
            text += fmt::format(
                "complete -c hold -n '{}; and not __fish_seen_subcommand_from {}' -a {} -d {}\n",
                condition, fmt::join(second_words(verb.name.substr(0, blank)), " "), second,
                single_quoted(verb.summary));
            condition += "; and __fish_seen_subcommand_from " + second;
        }
        for (const auto& flag : described.flags.flags()) {
            text += fmt::format("complete -c hold -n '{}'", condition);
            if (!flag->short_name.empty()) {
                text += " -s " + flag->short_name.substr(1);
            }
            if (!flag->long_name.empty()) {
                text += " -l " + flag->long_name.substr(2);
            }
            text += flag->value.empty()                  ? ""
                    : flag->completes == Completes::file ? " -r -F"
                                                         : " -x";
            if (!flag->words.empty()) {
                text += fmt::format(" -a '{}'", fmt::join(flag->words, " "));
            }
            text += " -d " + single_quoted(flag->help) + "\n";
        }
        if (const std::string list = lister(completes_of(described.flags)); !list.empty()) {
            text += fmt::format("complete -c hold -n '{}' -a '({})'\n", condition, list);
        } else if (completes_of(described.flags) == Completes::file) {
            text += fmt::format("complete -c hold -n '{}' -F\n", condition);
        } else if (const auto words = words_of(described.flags); !words.empty()) {
            text +=
                fmt::format("complete -c hold -n '{}' -a '{}'\n", condition, fmt::join(words, " "));
        }
    }
    return text;
}

}  // namespace

Result<std::string> completion_script(const std::string& shell) {
    if (shell == "bash") {
        return bash_script();
    }
    if (shell == "zsh") {
        return zsh_script();
    }
    if (shell == "fish") {
        return fish_script();
    }
    return fail(
        make_error(Errc::invalid_argument, "no completion for the shell `{}`", printable(shell))
            .at("SHELL")
            .advise("choose bash, zsh or fish"));
}

// ------------------------------------------------------------------------------------------- roff

namespace {

/// Text for roff: backslashes, hyphens and a leading dot or quote mean themselves.
std::string roff(std::string_view text) {
    std::string answer;
    for (const char c : text) {
        if (c == '\\') {
            answer += "\\e";
        } else if (c == '-') {
            answer += "\\-";
        } else {
            if ((c == '.' || c == '\'') && (answer.empty() || answer.back() == '\n')) {
                answer += "\\&";
            }
            answer += c;
        }
    }
    return answer;
}

std::string roff_flags(const Flags& flags, bool common) {
    std::string text;
    for (const auto& flag : flags.flags()) {
        if (flag->common == common) {
            text +=
                fmt::format(".TP\n.B {}\n{}\n", roff(trim(flag_names(*flag))), roff(flag->help));
        }
    }
    return text;
}

std::string roff_verb(const Verb& verb) {
    const Described described(verb);
    std::string usage = usage_line(verb, described.flags);
    usage.erase(0, std::string_view("usage: ").size());
    std::string text = fmt::format(".SS {}\n.B {}\n.PP\n{}.\n", roff("hold " + verb.name),
                                   roff(usage), roff(verb.summary));
    if (!verb.notes.empty()) {
        text += fmt::format(".PP\n{}\n", roff(verb.notes));
    }
    for (const auto& positional : described.flags.positionals()) {
        text += fmt::format(".TP\n.I {}\n{}\n", roff(positional->name), roff(positional->help));
    }
    text += roff_flags(described.flags, false);
    return text + fmt::format(".PP\n.nf\n.RS\n{}\n{}\n.RE\n.fi\n", roff(verb.examples[0]),
                              roff(verb.examples[1]));
}

constexpr std::string_view kManEnd = R"(.SH EXIT STATUS
0 done, 1 failed, 2 usage, 3 not found, 4 denied, 5 conflict, 6 unavailable, 124 timed out.
.B hold run
exits with its command's status.
.SH ENVIRONMENT
.TP
.B HOLDFAST_SERVER
The server: unix:/path or host:port.
.TP
.B HOLDFAST_TOKEN_FILE
A file that holds your token.
.TP
.B HOLDFAST_CA
The server's CA certificate.
.TP
.B HOLDFAST_LIBEXEC
The folder of hold\-server and hold\-agent.
.TP
.B NO_COLOR
No colour, also on a terminal.
.SH SEE ALSO
.BR hold\-server (8),
.BR hold\-agent (8)
)";

}  // namespace

std::string man_page() {
    std::string text = fmt::format(
        ".TH HOLD 1 \"\" \"holdfast {}\" \"Holdfast\"\n.SH NAME\nhold \\- an operating system for "
        "GPU training clusters\n.SH SYNOPSIS\n.B hold\n.I VERB\n[\\fIFLAGS\\fR]\n.SH DESCRIPTION\n"
        "Submits jobs to a Holdfast server, follows them and explains them. Ids may be written 42, "
        "job\\-42, or 42_3 for an element of an array. Lists are tables for people; with "
        "\\fB\\-\\-json\\fR one object with \"schema\": 1 for programs.\n",
        HOLDFAST_VERSION);
    std::string group;
    for (const Verb& verb : all_verbs()) {
        if (verb.group != group) {
            group = verb.group;
            std::string heading = group;
            std::transform(heading.begin(), heading.end(), heading.begin(), [](char c) {
                return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
            });
            text += ".SH " + roff(heading) + "\n";
        }
        text += roff_verb(verb);
    }
    text += ".SH COMMON FLAGS\n";
    const Verb* jobs = find_verb("jobs");
    HOLD_CHECK(jobs != nullptr, "the verb with every common flag");
    text += roff_flags(Described(*jobs).flags, true);
    return text + std::string(kManEnd);
}

namespace {

/// Help names the program as it was called: its folder is the build's, not the reader's.
std::string without_folder(std::string text, const std::string& program) {
    const std::string called = "/" + program;
    for (auto at = text.find(called); at != std::string::npos; at = text.find(called, at)) {
        const auto blank = text.find_last_of(" \t\n", at);
        const std::size_t begin = blank == std::string::npos ? 0 : blank + 1;
        text.erase(begin, at + 1 - begin);
        at = begin + program.size();
    }
    return text;
}

}  // namespace

std::string man_page_of(const std::string& program, const std::string& summary,
                        const std::string& help_text) {
    std::string title = program;
    std::transform(title.begin(), title.end(), title.begin(), [](char c) {
        return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    });
    return fmt::format(
        ".TH {} 8 \"\" \"holdfast {}\" \"Holdfast\"\n.SH NAME\n{} \\- {}\n.SH DESCRIPTION\n.nf\n{}"
        "\n.fi\n.SH SEE ALSO\n.BR hold (1)\n",
        roff(title), HOLDFAST_VERSION, roff(program), roff(summary),
        roff(without_folder(std::string(trim(help_text)), program)));
}

}  // namespace holdfast::cli
