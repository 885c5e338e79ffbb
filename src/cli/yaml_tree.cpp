// SPDX-License-Identifier: Apache-2.0
#include "yaml_tree.hpp"

#include <algorithm>
#include <exception>
#include <optional>
#include <set>
#include <sstream>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include "text.hpp"

namespace holdfast::cli {
namespace {

/// Our own refusal, on its way out of the parser's callbacks.
struct Refusal : std::exception {
    explicit Refusal(Error what_is_wrong) : error(std::move(what_is_wrong)) {}

    Error error;
};

/// Builds the tree from the parser's events and enforces the limits while it grows.
class TreeBuilder : public YAML::EventHandler {
  public:
    explicit TreeBuilder(const std::string& file) : file_(file) {}

    void OnDocumentStart(const YAML::Mark&) override {}

    void OnDocumentEnd() override {}

    void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
        add(begin(YamlNode::Kind::null, mark, "", anchor));
    }

    void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
        refuse(mark, Errc::invalid_argument, "aliases are not allowed here", "write the value out");
    }

    void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  const std::string& value) override {
        YamlNode node = begin(YamlNode::Kind::scalar, mark, tag, anchor);
        node.text = value;
        node.quoted = tag == "!";
        add(std::move(node));
    }

    void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                         YAML::EmitterStyle::value) override {
        open(begin(YamlNode::Kind::sequence, mark, tag, anchor), mark);
    }

    void OnSequenceEnd() override { close(); }

    void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                    YAML::EmitterStyle::value) override {
        open(begin(YamlNode::Kind::map, mark, tag, anchor), mark);
    }

    void OnMapEnd() override { close(); }

    YamlNode take() { return root_ ? std::move(*root_) : YamlNode{.line = 1, .column = 1}; }

  private:
    struct Open {
        YamlNode node;
        std::optional<YamlNode> key;  ///< a map's key that waits for its value
        std::set<std::string> keys;
    };

    [[noreturn]] void refuse(const YAML::Mark& mark, Errc code, const std::string& message,
                             const std::string& hint) const {
        throw Refusal(make_error(code, "{}", message)
                          .at(fmt::format("{}:{}:{}", file_, mark.line + 1, mark.column + 1))
                          .advise(hint));
    }

    YamlNode begin(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag,
                   YAML::anchor_t anchor) {
        if (anchor != 0) {
            refuse(mark, Errc::invalid_argument, "anchors are not allowed here",
                   "write the value out where it is used");
        }
        if (!tag.empty() && tag != "?" && tag != "!") {
            refuse(mark, Errc::invalid_argument,
                   fmt::format("the tag `{}` is not allowed here", printable(tag)), "remove it");
        }
        if (++values_ > kYamlValuesMax) {
            refuse(mark, Errc::too_large, fmt::format("more than {} values", kYamlValuesMax), "");
        }
        YamlNode node;
        node.kind = kind;
        node.line = mark.line + 1;
        node.column = mark.column + 1;
        return node;
    }

    void open(YamlNode node, const YAML::Mark& mark) {
        if (open_.size() == kYamlDepthMax) {
            refuse(mark, Errc::too_large,
                   fmt::format("nested deeper than {} levels", kYamlDepthMax), "");
        }
        open_.push_back({std::move(node), std::nullopt, {}});
    }

    void close() {
        YamlNode node = std::move(open_.back().node);
        open_.pop_back();
        add(std::move(node));
    }

    void add(YamlNode node) {
        if (open_.empty()) {
            root_ = std::move(node);
            return;
        }
        Open& parent = open_.back();
        if (parent.node.kind == YamlNode::Kind::sequence) {
            parent.node.items.push_back(std::move(node));
            return;
        }
        if (parent.key) {
            if (node.kind == YamlNode::Kind::null) {  // the parser gives the next token's place
                node.line = parent.key->line;
                node.column = parent.key->column;
            }
            parent.node.entries.emplace_back(std::move(*parent.key), std::move(node));
            parent.key.reset();
            return;
        }
        check_key(node, parent);
        parent.key = std::move(node);
    }

    void check_key(const YamlNode& key, Open& parent) const {
        YAML::Mark mark;
        mark.line = key.line - 1;
        mark.column = key.column - 1;
        if (key.kind != YamlNode::Kind::scalar) {
            refuse(mark, Errc::invalid_argument,
                   fmt::format("a key must be a word, not {}", key.kind_name()), "");
        }
        if (!parent.keys.insert(key.text).second) {
            refuse(mark, Errc::invalid_argument,
                   fmt::format("the key `{}` is given twice", printable(key.text)), "");
        }
    }

    const std::string& file_;
    std::vector<Open> open_;
    std::optional<YamlNode> root_;
    std::size_t values_ = 0;
};

/// Line and column (from 1) of a byte.
std::pair<std::size_t, std::size_t> position_of(std::string_view text, std::size_t offset) {
    const std::string_view before = text.substr(0, offset);
    const auto line_start = before.rfind('\n');
    const auto lines = static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n'));
    return {lines + 1, line_start == std::string_view::npos ? offset + 1 : offset - line_start};
}

/// Bytes that no text holds: yaml-cpp would guess at them or stop silently.
Result<> check_bytes(std::string_view text, const std::string& file) {
    if (text.size() > kYamlBytesMax) {
        return fail(make_error(Errc::too_large, "the job file has {} bytes; at most {} are read",
                               text.size(), kYamlBytesMax)
                        .at(file));
    }
    for (std::size_t i = 0; i < text.size(); ++i) {
        const auto c = static_cast<unsigned char>(text[i]);
        if (c == 0x7f || (c < 0x20 && c != '\n' && c != '\r' && c != '\t')) {
            const auto [line, column] = position_of(text, i);
            return fail(make_error(Errc::invalid_argument, "a control character (\\x{:02x})", c)
                            .at(fmt::format("{}:{}:{}", file, line, column)));
        }
    }
    if (!is_utf8(text)) {
        return fail(make_error(Errc::invalid_argument, "the job file is not UTF-8 text").at(file));
    }
    return {};
}

}  // namespace

std::string YamlNode::where(std::string_view file) const {
    return fmt::format("{}:{}:{}", file, line, column);
}

std::string_view YamlNode::kind_name() const {
    switch (kind) {
        case Kind::null:
            return "nothing";
        case Kind::scalar:
            return "a value";
        case Kind::sequence:
            return "a list";
        case Kind::map:
            return "a map";
    }
    return "a value";
}

Result<YamlNode> parse_yaml(std::string_view text, const std::string& file) {
    HOLD_TRY(check_bytes(text, file));
    TreeBuilder builder(file);
    try {
        std::istringstream stream{std::string(text)};
        YAML::Parser parser(stream);
        if (!parser.HandleNextDocument(builder)) {
            return builder.take();
        }
        YamlNode document = builder.take();
        TreeBuilder second(file);
        if (parser.HandleNextDocument(second)) {
            return fail(make_error(Errc::invalid_argument, "the file holds more than one document")
                            .at(second.take().where(file))
                            .advise("put each job into a file of its own"));
        }
        return document;
    } catch (const Refusal& refusal) {
        return fail(refusal.error);
    } catch (const YAML::Exception& error) {
        return fail(
            make_error(Errc::invalid_argument, "not valid YAML: {}", error.msg)
                .at(fmt::format("{}:{}:{}", file, error.mark.line + 1, error.mark.column + 1)));
    } catch (const std::exception& error) {
        return fail(
            make_error(Errc::invalid_argument, "not valid YAML: {}", error.what()).at(file));
    }
}

}  // namespace holdfast::cli
