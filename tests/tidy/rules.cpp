// SPDX-License-Identifier: Apache-2.0
#include "rules.hpp"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <optional>
#include <regex>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace holdfast::tidy {
namespace {

// The design's arrows: what a module may include of <holdfast/…>, besides itself.
const std::map<std::string, std::set<std::string>, std::less<>>& arrows() {
    static const std::map<std::string, std::set<std::string>, std::less<>> table = {
        {"base", {}},
        {"api", {}},
        {"rpc", {"base", "api"}},
        {"store", {"base"}},
        {"services", {"base", "store"}},
        {"training", {"base", "store", "services", "api", "rpc"}},
        {"placement", {"base"}},
        {"server", {"base", "store", "services", "training", "placement", "api", "rpc"}},
        {"agent", {"base", "api", "rpc"}},
        {"cli", {"base", "api", "rpc"}},
    };
    return table;
}

// Whose header is include/holdfast/NAME? One that is not listed belongs to the module of its name.
std::string module_of_header(std::string_view header) {
    static const std::map<std::string, std::string, std::less<>> owners = {
        {"env.hpp", "base"},
        {"error_codes.def", "base"},
        {"ids.hpp", "base"},
        {"log.hpp", "base"},
        {"metrics.hpp", "base"},
        {"result.hpp", "base"},
        {"simulated_env.hpp", "base"},
        {"training_messages.hpp", "training"},
        {"training_proto.hpp", "training"},
    };
    if (const auto owner = owners.find(header); owner != owners.end()) {
        return owner->second;
    }
    return std::string(header.substr(0, header.find_first_of("./")));
}

struct Ban {
    const char* pattern;
    std::string_view word;  ///< stands in every match: a quick look before the slow one
    const char* instead;
    bool everywhere;  ///< also in tests, benchmarks and tools; else only in src/ outside src/base
};

const std::vector<std::pair<std::regex, Ban>>& bans() {
    static const std::vector<Ban> table = {
        {R"(::\s*system\s*\(|\bsystem\s*\(\s*("|\w+\.c_str))", "system",
         "no shell behind our back: start the program", true},
        {R"(\bpopen\s*\()", "popen", "no shell behind our back: start the program", true},
        {R"(\bstr(cpy|cat)\s*\()", "strc", "has no bound: std::string", true},
        {R"(\bv?sprintf\s*\()", "sprintf", "has no bound: fmt", true},
        {R"(\bs?rand\s*\()", "rand", "Env::random, or a seeded generator", true},
        {R"(\b(local|gm|c|asc)time\s*\()", "time", "not safe in threads", true},
        {R"(\bstrtok\s*\()", "strtok", "not safe in threads", true},
        {R"(\bstd::random_device\b)", "random_device", "Env::random", false},
        {R"(_clock::now\b)", "_clock::now", "Env::clock", false},
        {R"(\bclock_gettime\s*\()", "clock_gettime", "Env::clock", false},
        {R"(\bgettimeofday\s*\()", "gettimeofday", "Env::clock", false},
        {R"(\bsleep_(for|until)\s*\()", "sleep_", "Env::clock.sleep_us", false},
        {R"(\b(u|nano)sleep\s*\()", "sleep", "Env::clock.sleep_us", false},
        {R"(\b(secure_)?getenv\s*\()", "getenv", "environment_variable() of env.hpp", false},
        {R"(\b\w*(thread|worker)\w*\.detach\s*\()", "detach", "keep the thread and join it", false},
    };
    static const std::vector<std::pair<std::regex, Ban>> compiled = [] {
        std::vector<std::pair<std::regex, Ban>> made;
        made.reserve(table.size());
        for (const Ban& ban : table) {
            made.emplace_back(std::regex(ban.pattern, std::regex::optimize), ban);
        }
        return made;
    }();
    return compiled;
}

// Where a ban does not hold: (file, part of the line) and why.
struct Exemption {
    const char* file;
    const char* part;
    const char* why;
};

const std::vector<Exemption>& exemptions() {
    static const std::vector<Exemption> table = {
        {"src/server/server.cpp", "grpc_server->Shutdown(",
         "gRPC wants its deadline as a time point"},
    };
    return table;
}

bool is_exempt(std::string_view file, std::string_view line) {
    const std::vector<Exemption>& all = exemptions();
    return std::any_of(all.begin(), all.end(), [&](const Exemption& exemption) {
        return file == exemption.file && line.find(exemption.part) != std::string_view::npos;
    });
}

bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> starts) {
    return std::any_of(starts.begin(), starts.end(),
                       [&](std::string_view start) { return text.starts_with(start); });
}

bool ends_with_any(std::string_view text, std::initializer_list<std::string_view> ends) {
    return std::any_of(ends.begin(), ends.end(),
                       [&](std::string_view end) { return text.ends_with(end); });
}

bool is_cpp(std::string_view path) {
    return ends_with_any(path, {".cpp", ".hpp"});
}

bool is_script(std::string_view path) {
    return path == "dev" || path == ".ci/run" || path.ends_with(".sh");
}

bool is_cmake(std::string_view path) {
    return ends_with_any(path, {"CMakeLists.txt", ".cmake"});
}

/// How many columns a line may have; nothing: as many as it likes.
std::optional<std::size_t> columns_max(std::string_view path) {
    if (is_cpp(path)) {
        // Tests and benchmarks hold tables and raw SQL.
        return starts_with_any(path, {"tests/", "bench/"}) ? 140 : 100;
    }
    if (is_script(path) || is_cmake(path) || ends_with_any(path, {".proto", ".def"})) {
        return 120;
    }
    if (path.ends_with(".sql")) {
        return 160;
    }
    return std::nullopt;
}

/// Characters, not bytes.
std::size_t columns_of(std::string_view line) {
    return static_cast<std::size_t>(std::count_if(line.begin(), line.end(), [](char byte) {
        return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U;
    }));
}

template <typename F>
void for_each_line(std::string_view text, F&& visit) {
    std::size_t number = 0;
    while (!text.empty()) {
        const std::size_t end = text.find('\n');
        visit(++number, text.substr(0, end));
        if (end == std::string_view::npos) {
            return;
        }
        text.remove_prefix(end + 1);
    }
}

std::string text_of(const Tree& tree, const std::string& path) {
    const auto file = tree.find(path);
    return file == tree.end() ? std::string() : file->second;
}

/// All matches of the pattern's groups 1 and 2 (2 empty if there is none).
std::vector<std::pair<std::string, std::string>> matches(const std::string& text,
                                                         const std::regex& pattern) {
    std::vector<std::pair<std::string, std::string>> all;
    for (auto it = std::sregex_iterator(text.begin(), text.end(), pattern);
         it != std::sregex_iterator(); ++it) {
        all.emplace_back((*it)[1].str(), it->size() > 2 ? (*it)[2].str() : std::string());
    }
    return all;
}

// The length of a raw string literal that begins at `at` ('R' before it is already consumed).
std::size_t raw_string_length(std::string_view rest) {
    const std::size_t open = rest.find('(');
    if (open == std::string_view::npos) {
        return rest.size();
    }
    const std::string end = fmt::format("){}\"", rest.substr(1, open - 1));
    const std::size_t close = rest.find(end, open);
    return close == std::string_view::npos ? rest.size() : close + end.size();
}

std::size_t quoted_length(std::string_view rest) {
    const char quote = rest.front();
    for (std::size_t i = 1; i < rest.size(); ++i) {
        if (rest[i] == '\\') {
            ++i;
        } else if (rest[i] == quote || rest[i] == '\n') {
            return i + 1;
        }
    }
    return rest.size();
}

std::size_t comment_length(std::string_view rest) {
    if (rest.starts_with("//")) {
        return std::min(rest.find('\n'), rest.size());
    }
    const std::size_t end = rest.find("*/", 2);
    return end == std::string_view::npos ? rest.size() : end + 2;
}

void blank(std::string& text, std::size_t from, std::size_t length) {
    for (std::size_t i = from; i < from + length; ++i) {
        if (text[i] != '\n') {
            text[i] = ' ';
        }
    }
}

bool is_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

/// Both directions between the names in the code and the first column of a document's table.
void compare_names(const std::map<std::string, std::string>& in_code, const std::string& document,
                   const std::map<std::string, std::string>& in_document, const std::string& rule,
                   std::vector<Finding>& found) {
    for (const auto& [name, word] : in_code) {
        const auto row = in_document.find(name);
        if (row == in_document.end()) {
            found.push_back({document, 0, rule, fmt::format("`{}` is not documented", name)});
        } else if (row->second != word) {
            found.push_back({document, 0, rule,
                             fmt::format("`{}`: the document says '{}', the code '{}'", name,
                                         row->second, word)});
        }
    }
    for (const auto& [name, word] : in_document) {
        if (!in_code.contains(name)) {
            found.push_back({document, 0, rule, fmt::format("`{}` is not in the code", name)});
        }
    }
}

/// Table rows "| `name` | word | …" → name → word.
std::map<std::string, std::string> table_rows(const std::string& text) {
    static const std::regex row(R"(\|\s*`([^`|]+)`\s*\|\s*([^|\n]*?)\s*\|)");
    std::map<std::string, std::string> rows;
    for (auto& [name, word] : matches(text, row)) {
        rows.emplace(std::move(name), std::move(word));
    }
    return rows;
}

/// A relative link in a document, as a path from the root.
std::string resolve(const std::string& document, const std::string& target) {
    std::vector<std::string> parts;
    const std::size_t slash = document.rfind('/');
    const std::string joined =
        slash == std::string::npos ? target : document.substr(0, slash + 1) + target;
    for (std::size_t from = 0; from <= joined.size();) {
        const std::size_t end = std::min(joined.find('/', from), joined.size());
        const std::string part = joined.substr(from, end - from);
        if (part == ".." && !parts.empty()) {
            parts.pop_back();
        } else if (!part.empty() && part != ".") {
            parts.push_back(part);
        }
        from = end + 1;
    }
    return fmt::format("{}", fmt::join(parts, "/"));
}

/// Tests in the tree as "Suite.Name".
std::set<std::string> test_names(const Tree& tree) {
    static const std::regex declared(
        R"(\b(?:TEST|TEST_F|TEST_P|TYPED_TEST|RC_GTEST_PROP)\s*\(\s*(\w+)\s*,\s*(\w+))");
    static const std::regex added(R"(add_test\s*\(\s*NAME\s+(?:\$\{\w+\})?([\w.]+)())");
    std::set<std::string> names;
    for (const auto& [path, text] : tree) {
        if (!path.starts_with("tests/")) {
            continue;
        }
        if (is_cpp(path)) {
            for (const auto& [suite, name] : matches(text, declared)) {
                names.insert(fmt::format("{}.{}", suite, name));
            }
        } else if (is_cmake(path)) {
            for (const auto& [name, unused] : matches(text, added)) {
                names.insert(name);
            }
        } else if (path.starts_with("tests/e2e/") && path.ends_with(".sh")) {
            names.insert(fmt::format("e2e.{}", path.substr(10, path.size() - 13)));
        }
    }
    return names;
}

}  // namespace

std::string without_comments(std::string_view source, bool literals) {
    std::string out(source);
    for (std::size_t at = 0; at < source.size();) {
        const std::string_view rest = source.substr(at);
        std::size_t length = 1;
        if (rest.starts_with("//") || rest.starts_with("/*")) {
            length = comment_length(rest);
            blank(out, at, length);
        } else if (rest.front() == '"' && at > 0 && source[at - 1] == 'R') {
            length = raw_string_length(rest);
            if (literals) {
                blank(out, at, length);
            }
        } else if (rest.front() == '"' ||
                   // A quote inside a number is a separator: 1'000.
                   (rest.front() == '\'' && (at == 0 || !is_word(source[at - 1])))) {
            length = quoted_length(rest);
            if (literals && length > 2) {
                blank(out, at + 1, length - 2);
            }
        }
        at += length;
    }
    return out;
}

void check_layout(const std::string& path, std::string_view text, std::vector<Finding>& found) {
    const std::optional<std::size_t> limit = columns_max(path);
    const bool is_document = path.ends_with(".md");
    for_each_line(text, [&](std::size_t number, std::string_view line) {
        if (limit && columns_of(line) > *limit) {
            found.push_back({path, number, "columns",
                             fmt::format("{} columns, at most {}", columns_of(line), *limit)});
        }
        if (line.ends_with(' ') || line.ends_with('\t')) {
            found.push_back({path, number, "trailing-space", "ends in a space"});
        }
        if (line.ends_with('\r')) {
            found.push_back({path, number, "line-end", "carriage return"});
        }
        if (!is_document && line.find('\t') != std::string_view::npos) {
            found.push_back({path, number, "tab", "write spaces"});
        }
    });
    if (!text.empty() && !text.ends_with('\n')) {
        found.push_back({path, 0, "final-newline", "the last line has no end"});
    }
}

void check_licence_line(const std::string& path, std::string_view text,
                        std::vector<Finding>& found) {
    if (!is_cpp(path) && !is_script(path) && !is_cmake(path) &&
        !ends_with_any(path, {".def", ".proto", ".sql"})) {
        return;
    }
    std::size_t line_with_it = 0;
    for_each_line(text, [&](std::size_t number, std::string_view line) {
        if (number <= 2 && line.find("SPDX-License-Identifier: Apache-2.0") != line.npos) {
            line_with_it = number;
        }
    });
    const bool has_shebang = text.starts_with("#!");
    if (line_with_it != (has_shebang ? 2U : 1U)) {
        found.push_back({path, has_shebang ? 2U : 1U, "licence-line",
                         "SPDX-License-Identifier: Apache-2.0 is missing here"});
    }
}

void check_arrows(const std::string& path, std::string_view text, std::vector<Finding>& found) {
    static const std::regex module_of_path(R"(^src/([a-z_]+)/)");
    static const std::regex include(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
    std::smatch module;
    if (!std::regex_search(path, module, module_of_path) || !is_cpp(path)) {
        return;
    }
    const std::string own = module[1];
    const auto row = arrows().find(own);
    if (row == arrows().end()) {
        found.push_back(
            {path, 0, "arrows", fmt::format("module '{}' has no row in the table of arrows", own)});
        return;
    }
    for_each_line(text, [&](std::size_t number, std::string_view line) {
        std::match_results<std::string_view::const_iterator> match;
        if (line.find('#') == line.npos ||
            !std::regex_search(line.begin(), line.end(), match, include)) {
            return;
        }
        const std::string name = match[2];
        if (match[1] == "\"" && name.find("..") != std::string::npos) {
            found.push_back({path, number, "arrows", "no include through a parent folder"});
        }
        if (!name.starts_with("holdfast/") && !name.starts_with("holdfast.")) {
            return;
        }
        const std::string other = name.starts_with("holdfast.")
                                      ? std::string("api")
                                      : module_of_header(std::string_view(name).substr(9));
        if (other != own && !row->second.contains(other)) {
            found.push_back({path, number, "arrows",
                             fmt::format("{} may not include {} of {}", own, name, other)});
        }
    });
}

void check_banned_calls(const std::string& path, std::string_view text,
                        std::vector<Finding>& found) {
    if (!is_cpp(path) || path.starts_with("tests/tidy/")) {
        return;
    }
    const bool is_product = starts_with_any(path, {"src/", "include/"});
    const bool is_seam = path.starts_with("src/base/");
    const std::string code = without_comments(text, true);
    for_each_line(code, [&](std::size_t number, std::string_view line) {
        for (const auto& [pattern, ban] : bans()) {
            if (!ban.everywhere && (!is_product || is_seam)) {
                continue;
            }
            std::match_results<std::string_view::const_iterator> match;
            if (line.find(ban.word) != line.npos &&
                std::regex_search(line.begin(), line.end(), match, pattern) &&
                !is_exempt(path, line)) {
                found.push_back(
                    {path, number, "banned-call", fmt::format("{}: {}", match.str(), ban.instead)});
            }
        }
    });
}

void check_marks(const std::string& path, std::string_view text, std::vector<Finding>& found) {
    if (path.starts_with("tests/tidy/")) {
        return;
    }
    // Of a machine that the sources were once on; each would be a path that exists nowhere else.
    static const std::regex machine(R"((^|[\s"'=(`])/(work|root|farm)/)");
    // Anywhere a word of its own: unfinished work is finished, or stated as a limit in the docs.
    static const std::regex mark(R"(\b(TODO|FIXME|XXX)\b)");
    static const std::vector<std::string_view> words = {"TODO", "FIXME", "XXX"};
    for_each_line(text, [&](std::size_t number, std::string_view line) {
        const bool has_word = std::any_of(words.begin(), words.end(), [&](std::string_view word) {
            return line.find(word) != line.npos;
        });
        if (has_word && std::regex_search(line.begin(), line.end(), mark)) {
            found.push_back({path, number, "mark", "unfinished work"});
        }
        if (line.find('/') != line.npos && std::regex_search(line.begin(), line.end(), machine)) {
            found.push_back({path, number, "machine-path", "a path of one machine"});
        }
    });
}

void check_header_size(const std::string& path, std::string_view text,
                       std::vector<Finding>& found) {
    // store.hpp: three fifths are the typed templates that must stand in a header.
    static const std::map<std::string, std::ptrdiff_t> larger = {
        {"include/holdfast/store.hpp", 450},
        // services.hpp: the rows of the schema stand in it, one field each.
        {"include/holdfast/services.hpp", 400},
    };
    if (!path.starts_with("include/holdfast/")) {
        return;
    }
    const auto exception = larger.find(path);
    const std::ptrdiff_t limit = exception == larger.end() ? 300 : exception->second;
    const std::ptrdiff_t lines = std::count(text.begin(), text.end(), '\n');
    if (lines > limit) {
        found.push_back(
            {path, 0, "header-size", fmt::format("{} lines, at most {}", lines, limit)});
    }
}

void check_tests_registered(const Tree& tree, std::vector<Finding>& found) {
    const std::string top = text_of(tree, "tests/CMakeLists.txt");
    static const std::regex test_file(
        R"(^(tests/(?:unit/)?([a-z0-9_]+))/(?:.*/)?([\w]+_test\.cpp)$)");
    for (const auto& [path, text] : tree) {
        std::smatch match;
        if (!std::regex_search(path, match, test_file)) {
            continue;
        }
        const std::string folder = match[1];
        const std::string part = match[2];
        const std::string file = match[3];
        if (!std::regex_search(top, std::regex("\\b" + part + "\\b"))) {
            found.push_back({"tests/CMakeLists.txt", 0, "test-registered",
                             fmt::format("{} is not added", folder)});
        }
        std::string lists;
        for (auto it = tree.lower_bound(folder + "/");
             it != tree.end() && it->first.starts_with(folder + "/"); ++it) {
            if (is_cmake(it->first)) {
                lists += it->second;
            }
        }
        if (lists.find(file) == std::string::npos) {
            found.push_back({path, 0, "test-registered",
                             fmt::format("not named by a CMakeLists.txt under {}", folder)});
        }
    }
}

void check_error_codes(const Tree& tree, std::vector<Finding>& found) {
    static const std::regex entry(R"(\nHOLD_ERROR\((\w+), \d+, (\d+),)");
    const std::string document = "docs/users/exit-codes.md";
    std::map<std::string, std::string> codes;
    for (auto& [name, exit_code] :
         matches(text_of(tree, "include/holdfast/error_codes.def"), entry)) {
        codes.emplace(std::move(name), std::move(exit_code));
    }
    // Rows of the table of exit codes begin with a number; those are not names of errors.
    std::map<std::string, std::string> documented;
    for (auto& [name, exit_code] : table_rows(text_of(tree, document))) {
        if (std::isdigit(static_cast<unsigned char>(name.front())) == 0) {
            documented.emplace(name, exit_code);
        }
    }
    compare_names(codes, document, documented, "error-documented", found);
}

void check_events(const Tree& tree, std::vector<Finding>& found) {
    static const std::regex event(R"re(\bHOLD_EVENT\(\s*(\w+),\s*"(\w+)")re");
    static const std::regex call(R"re(\blog_event\(\s*Level::(\w+),\s*"(\w+)")re");
    std::map<std::string, std::string> events;
    for (const auto& [path, text] : tree) {
        if (!path.starts_with("src/") || !is_cpp(path)) {
            continue;
        }
        const std::string code = without_comments(text, false);
        for (const std::regex* pattern : {&event, &call}) {
            for (const auto& [level, name] : matches(code, *pattern)) {
                const auto [row, is_new] = events.emplace(name, level);
                if (!is_new && row->second != level) {
                    found.push_back({path, 0, "event-documented",
                                     fmt::format("`{}` is logged at two levels", name)});
                }
            }
        }
    }
    compare_names(events, "docs/operators/events.md",
                  table_rows(text_of(tree, "docs/operators/events.md")), "event-documented", found);
}

void check_metrics(const Tree& tree, std::vector<Finding>& found) {
    static const std::regex made(R"re(\b(counter|gauge|histogram)\(\s*"(holdfast_\w+)")re");
    std::map<std::string, std::string> metrics;
    for (const auto& [path, text] : tree) {
        if (!path.starts_with("src/") || !is_cpp(path)) {
            continue;
        }
        for (const auto& [kind, name] : matches(without_comments(text, false), made)) {
            metrics.emplace(name, kind);
        }
    }
    compare_names(metrics, "docs/operators/metrics.md",
                  table_rows(text_of(tree, "docs/operators/metrics.md")), "metric-documented",
                  found);
}

void check_promises(const Tree& tree, std::vector<Finding>& found) {
    const std::string document = "SPECIFICATION.md";
    static const std::regex named(R"(`(\w+)\.(\w+)`)");
    static const std::regex promise(R"(^\|\s*(S-\d+)\s*\|)");
    const std::set<std::string> tests = test_names(tree);
    std::set<std::string> numbers;
    for_each_line(text_of(tree, document), [&](std::size_t number, std::string_view line) {
        const std::string row(line);
        std::smatch match;
        if (!std::regex_search(row, match, promise)) {
            return;
        }
        if (!numbers.insert(match[1]).second) {
            found.push_back({document, number, "promise", match[1].str() + " stands twice"});
        }
        // The tests are the last column.
        const std::size_t last = row.rfind('|', row.rfind('|') - 1);
        const std::string proof = row.substr(last);
        const auto proofs = matches(proof, named);
        if (proofs.empty() && proof.find("[untested]") == std::string::npos) {
            found.push_back({document, number, "promise", "names no test and is not [untested]"});
        }
        for (const auto& [suite, name] : proofs) {
            if (!tests.contains(fmt::format("{}.{}", suite, name))) {
                found.push_back({document, number, "promise",
                                 fmt::format("there is no test {}.{}", suite, name)});
            }
        }
    });
}

void check_links(const Tree& tree, std::vector<Finding>& found) {
    static const std::regex link(R"(\]\(([^)#\s]+)(?:#[^)]*)?\))");
    for (const auto& [path, text] : tree) {
        if (!path.ends_with(".md")) {
            continue;
        }
        for (const auto& [target, unused] : matches(text, link)) {
            if (target.find("://") != std::string::npos || target.starts_with("mailto:")) {
                continue;
            }
            const std::string resolved = resolve(path, target);
            const auto at = tree.lower_bound(resolved);
            const bool is_there = at != tree.end() &&
                                  (at->first == resolved || at->first.starts_with(resolved + "/"));
            if (!is_there) {
                found.push_back({path, 0, "link", fmt::format("leads nowhere: {}", target)});
            }
        }
    }
}

std::vector<Finding> check_all(const Tree& tree) {
    std::vector<Finding> found;
    for (const auto& [path, text] : tree) {
        check_layout(path, text, found);
        check_licence_line(path, text, found);
        check_arrows(path, text, found);
        check_banned_calls(path, text, found);
        check_marks(path, text, found);
        check_header_size(path, text, found);
    }
    check_tests_registered(tree, found);
    check_error_codes(tree, found);
    check_events(tree, found);
    check_metrics(tree, found);
    check_promises(tree, found);
    check_links(tree, found);
    return found;
}

}  // namespace holdfast::tidy
