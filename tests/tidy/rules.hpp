// SPDX-License-Identifier: Apache-2.0
/// What compilers cannot check, as rules over the text of the repository: which module may include
/// which, banned calls, layout, unfinished work, and documents that must name what the code has.
/// A rule is a pure function from text to findings, so each is tested on a text that breaks it.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace holdfast::tidy {

struct Finding {
    std::string file;
    std::size_t line = 0;  ///< 1-based; 0: the whole file
    std::string rule;
    std::string text;

    bool operator==(const Finding&) const = default;
};

/// Path relative to the repository's root → the file's text.
using Tree = std::map<std::string, std::string>;

/// The text with comments blanked, and also what stands in string and character literals if
/// `literals` is set; lines and columns stay. Knows raw strings.
[[nodiscard]] std::string without_comments(std::string_view source, bool literals);

// Rules on one file. Each looks at the path first and has nothing to say about other files.
void check_layout(const std::string& path, std::string_view text, std::vector<Finding>& found);
void check_licence_line(const std::string& path, std::string_view text,
                        std::vector<Finding>& found);
void check_arrows(const std::string& path, std::string_view text, std::vector<Finding>& found);
void check_banned_calls(const std::string& path, std::string_view text,
                        std::vector<Finding>& found);
void check_marks(const std::string& path, std::string_view text, std::vector<Finding>& found);
void check_header_size(const std::string& path, std::string_view text, std::vector<Finding>& found);

// Rules on the whole tree.
/// Every tests/unit/X is added in tests/CMakeLists.txt and every *_test.cpp is named by the
/// CMakeLists.txt of its folder.
void check_tests_registered(const Tree& tree, std::vector<Finding>& found);
/// Every error code stands in docs/users/exit-codes.md with its exit status, and no other does.
void check_error_codes(const Tree& tree, std::vector<Finding>& found);
/// Every event logged in src/ stands in docs/operators/events.md with its level, and no other does.
void check_events(const Tree& tree, std::vector<Finding>& found);
/// Every metric made in src/ stands in docs/operators/metrics.md, and no other does.
void check_metrics(const Tree& tree, std::vector<Finding>& found);
/// Every test that SPECIFICATION.md names exists; every promise names one or says [untested].
void check_promises(const Tree& tree, std::vector<Finding>& found);
/// Relative links in documents lead somewhere.
void check_links(const Tree& tree, std::vector<Finding>& found);

[[nodiscard]] std::vector<Finding> check_all(const Tree& tree);

}  // namespace holdfast::tidy
