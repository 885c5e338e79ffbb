// SPDX-License-Identifier: Apache-2.0
// A small YAML document as a tree that knows where each value stands.
//
// Job files come from strangers: one document, at most kYamlBytesMax bytes and kYamlDepthMax
// levels, no anchors or aliases (so no bombs), no tags, no repeated keys. yaml-cpp and its
// exceptions stay in yaml_tree.cpp.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <holdfast/result.hpp>

namespace holdfast::cli {

inline constexpr std::size_t kYamlBytesMax = 1 << 20;
inline constexpr int kYamlDepthMax = 32;
inline constexpr std::size_t kYamlValuesMax = 100'000;

struct YamlNode {
    enum class Kind : unsigned char { null, scalar, sequence, map };

    Kind kind = Kind::null;
    std::string text = {};  ///< scalar
    bool quoted = false;    ///< scalar in quotes or a block: never a number or a boolean
    int line = 0;           ///< from 1
    int column = 0;
    std::vector<YamlNode> items = {};                         ///< sequence
    std::vector<std::pair<YamlNode, YamlNode>> entries = {};  ///< map, in the file's order

    [[nodiscard]] std::string where(std::string_view file) const;
    /// "a text", "a list", … for messages.
    [[nodiscard]] std::string_view kind_name() const;
};

/// Errors: invalid_argument or too_large, `where` is file:line:column.
Result<YamlNode> parse_yaml(std::string_view text, const std::string& file);

}  // namespace holdfast::cli
