// SPDX-License-Identifier: Apache-2.0
/// The error table as functions, generated from error_codes.def.
#include <cstdlib>

#include <holdfast/log.hpp>
#include <holdfast/result.hpp>

namespace holdfast {

namespace {

struct CodeRow {
    Errc code;
    std::string_view name;
    int exit_code;
    int grpc_code;
};

constexpr CodeRow kCodes[] = {
#define HOLD_ERROR(name, number, exit_code, grpc_code) {Errc::name, #name, exit_code, grpc_code},
#include <holdfast/error_codes.def>
#undef HOLD_ERROR
};

const CodeRow& row_of(Errc code) {
    for (const CodeRow& row : kCodes) {
        if (row.code == code) {
            return row;
        }
    }
    return kCodes[0];  // a number from elsewhere, cast to Errc: `failed`
}

}  // namespace

std::string_view to_string(Errc code) {
    return row_of(code).name;
}

int exit_code_of(Errc code) {
    return row_of(code).exit_code;
}

int grpc_code_of(Errc code) {
    return row_of(code).grpc_code;
}

Errc errc_from(std::string_view name) {
    for (const CodeRow& row : kCodes) {
        if (row.name == name) {
            return row.code;
        }
    }
    return Errc::failed;
}

std::string Error::describe() const {
    std::string text = message;
    if (!where.empty()) {
        text += fmt::format(" (at {})", where);
    }
    if (!hint.empty()) {
        text += fmt::format("; {}", hint);
    }
    return text;
}

void check_failed(const char* file, int line, const char* condition, std::string_view why) {
    const std::string place = fmt::format("{}:{}", file, line);
    log_event(Level::error, "check_failed",
              {{"at", place}, {"condition", condition}, {"why", why}});
    std::abort();
}

}  // namespace holdfast
