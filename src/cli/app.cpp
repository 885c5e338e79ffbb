// SPDX-License-Identifier: Apache-2.0
#include "app.hpp"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>

#include "help.hpp"
#include "text.hpp"
#include "verbs.hpp"

namespace holdfast::cli {
namespace {

constexpr int kUsage = 2;

/// What the fingers of other systems' users type.
const std::map<std::string, std::string, std::less<>> kOtherWords = {
    {"sbatch", "submit"}, {"srun", "run"},      {"squeue", "jobs"},   {"scancel", "cancel"},
    {"sinfo", "nodes"},   {"sacct", "history"}, {"queue", "jobs"},    {"list", "jobs"},
    {"ps", "jobs"},       {"get", "jobs"},      {"delete", "cancel"}, {"kill", "cancel"},
    {"describe", "why"},  {"status", "jobs"},   {"apply", "submit"},  {"log", "logs"},
    {"query", "sql"},     {"job", "jobs"},
};

/// Verbs of the command contract whose part is not built yet.
const std::vector<std::string> kNotBuilt = {
    "when",  "requeue", "exec",   "account",  "quota",     "reservation",
    "store", "report",  "policy", "simulate", "train",     "vm",
    "fs",    "msg",     "bench",  "drill",    "kubernetes"};

bool is_help(const std::string& word) {
    return word == "--help" || word == "-h";
}

/// Known before the flags are parsed, so that a usage error has the right form too.
bool wants_json(const std::vector<std::string>& arguments) {
    for (std::size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
        const std::string& word = arguments[i];
        if (word == "--json" || word == "-ojson" || word == "--output=json" ||
            ((word == "-o" || word == "--output") && i + 1 < arguments.size() &&
             arguments[i + 1] == "json")) {
            return true;
        }
    }
    return false;
}

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

bool is_family(const std::string& word) {
    const auto& verbs = all_verbs();
    return std::any_of(verbs.begin(), verbs.end(),
                       [&](const Verb& verb) { return verb.name.starts_with(word + " "); });
}

tl::unexpected<Error> unknown_verb(const std::string& word) {
    if (std::find(kNotBuilt.begin(), kNotBuilt.end(), word) != kNotBuilt.end()) {
        return fail(make_error(Errc::unsupported, "`hold {}` is not built yet", word)
                        .advise("see `hold help` for what is there"));
    }
    Error error = make_error(Errc::invalid_argument, "unknown verb `{}`", printable(word));
    if (const auto other = kOtherWords.find(word); other != kOtherWords.end()) {
        return fail(std::move(error).advise(fmt::format("did you mean `hold {}`?", other->second)));
    }
    const std::string near = did_you_mean(word, first_words());
    return fail(std::move(error).advise(near.empty() ? "see `hold help`" : near));
}

tl::unexpected<Error> unknown_second_word(const std::string& family, const std::string& word) {
    std::vector<std::string> known;
    for (const Verb& verb : all_verbs()) {
        if (verb.name.starts_with(family + " ")) {
            known.push_back(verb.name.substr(family.size() + 1));
        }
    }
    const std::string near = did_you_mean(word, known);
    return fail(
        make_error(Errc::invalid_argument, "unknown verb `{} {}`", family, printable(word))
            .advise(near.empty() ? fmt::format("choose {}", fmt::join(known, ", ")) : near));
}

class Invocation {
  public:
    Invocation(std::vector<std::string> arguments, Surroundings& around)
        : arguments_(std::move(arguments)), around_(around), session_(around) {}

    int run() {
        const bool json = wants_json(arguments_);
        auto status = dispatch();
        if (status) {
            return *status;
        }
        const Error& error = status.error();
        if (json) {
            (void)around_.out.write(json_text(error_object(error), 2) + "\n");  // nowhere to go
        } else {
            const bool colour =
                around_.err.is_terminal() && !environment_variable("NO_COLOR").has_value();
            (void)around_.err.write(error_text(error, session_.verb, colour));  // on from here
        }
        return exit_code_of(error.code);
    }

  private:
    Result<int> dispatch() {
        HOLD_TRY(const bool answered, leading_flags());
        if (answered) {
            return 0;
        }
        if (arguments_.empty()) {
            HOLD_TRY(around_.err.write(program_help()));
            return kUsage;
        }
        const std::string word = take_word();
        if (const Verb* verb = find_verb(word); verb != nullptr) {
            return run_verb(*verb);
        }
        if (!is_family(word)) {
            return unknown_verb(word);
        }
        if (arguments_.empty() || is_help(arguments_.front())) {
            const bool asked = !arguments_.empty();
            HOLD_TRY((asked ? around_.out : around_.err).write(family_help(word)));
            return asked ? 0 : kUsage;
        }
        const std::string second = take_word();
        const Verb* verb = find_verb(word + " " + second);
        return verb == nullptr ? unknown_second_word(word, second) : run_verb(*verb);
    }

    /// Flags before the verb: --help, --version, and those of the connection, which move behind it.
    Result<bool> leading_flags() {
        while (!arguments_.empty() && arguments_.front().starts_with("-")) {
            const std::string word = take_word();
            if (is_help(word)) {
                HOLD_TRY(around_.out.write(program_help()));
                return true;
            }
            if (word == "--version") {
                arguments_ = {"version"};
                return false;
            }
            const std::string name = word.substr(0, word.find('='));
            if (name != "--server" && name != "--token-file" && name != "--ca") {
                return fail(make_error(Errc::invalid_argument, "unknown flag `{}` before the verb",
                                       printable(word))
                                .at(printable(word))
                                .advise("a verb's flags stand behind it: hold VERB FLAGS"));
            }
            moved_.push_back(word);
            if (name == word && !arguments_.empty()) {
                moved_.push_back(take_word());
            }
        }
        return false;
    }

    std::string take_word() {
        std::string word = std::move(arguments_.front());
        arguments_.erase(arguments_.begin());
        return word;
    }

    Result<int> run_verb(const Verb& verb) {
        session_.verb = verb.name;
        arguments_.insert(arguments_.begin(), moved_.begin(), moved_.end());
        if (!verb.neighbour.empty()) {
            return fail(
                around_.replace_process(libexec_folder() + "/" + verb.neighbour, arguments_));
        }
        const auto end = std::find(arguments_.begin(), arguments_.end(), "--");
        if (std::any_of(arguments_.begin(), end, is_help)) {
            HOLD_TRY(around_.out.write(verb_help(verb)));
            return 0;
        }
        Flags flags;
        const Command command = declare_all(verb, flags, session_);
        if (auto parsed = flags.parse(arguments_); !parsed) {
            Error error = std::move(parsed).error();
            if (error.hint.empty()) {
                error.hint = fmt::format("see `hold {} --help`", verb.name);
            }
            return fail(std::move(error));
        }
        return command(session_);
    }

    std::vector<std::string> arguments_;
    std::vector<std::string> moved_;
    Surroundings& around_;
    Session session_;
};

}  // namespace

Result<Client*> Session::client() {
    if (!client_) {
        HOLD_TRY(client_, Client::open(around.env, server));
        client_->on_retry([this](const Error& error) {
            note(fmt::format("hold: {}; trying again", printable(error.message)));
        });
    }
    return client_.get();
}

void Session::note(std::string_view text) {
    std::string line(text);
    if (!line.ends_with("\n")) {
        line += "\n";
    }
    (void)around.err.write(line);  // a hint that cannot be shown changes nothing
}

std::string libexec_folder() {
    if (auto folder = environment_variable("HOLDFAST_LIBEXEC"); folder && !folder->empty()) {
        return *folder;
    }
    std::error_code error;
    const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
    return (program.parent_path().parent_path() / "libexec" / "holdfast").string();
}

int run_hold(const std::vector<std::string>& arguments, Surroundings& surroundings) {
    return Invocation(arguments, surroundings).run();
}

}  // namespace holdfast::cli
