// SPDX-License-Identifier: Apache-2.0
#include "process_tree.hpp"

#include <charconv>
#include <set>
#include <unordered_map>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace holdfast::agent {
namespace {

constexpr std::size_t kStatBytesMax = 4096;
constexpr std::size_t kEnvironmentBytesMax = 4 << 20;

template <typename T>
bool parse_number(std::string_view text, T& number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc{} && end == text.data() + text.size();
}

/// Words after the command's closing parenthesis; the command itself may hold spaces and brackets.
std::vector<std::string_view> words_after_command(std::string_view line) {
    std::vector<std::string_view> words;
    const auto close = line.rfind(')');
    if (close == std::string_view::npos) {
        return words;
    }
    line.remove_prefix(close + 1);
    while (!line.empty()) {
        const auto begin = line.find_first_not_of(" \n");
        if (begin == std::string_view::npos) {
            break;
        }
        line.remove_prefix(begin);
        const auto end = std::min(line.find_first_of(" \n"), line.size());
        words.push_back(line.substr(0, end));
        line.remove_prefix(end);
    }
    return words;
}

}  // namespace

std::string read_kernel_file(const std::string& path, std::size_t bytes_max) {
    const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    std::string text;
    char buffer[8192];
    while (file.is_open() && text.size() < bytes_max) {
        const ssize_t got = ::read(file.get(), buffer, sizeof buffer);
        if (got <= 0) {
            break;
        }
        text.append(buffer, static_cast<std::size_t>(got));
    }
    return text;
}

std::optional<Process> parse_process_stat(std::string_view line) {
    Process process;
    const auto open = line.find(" (");
    if (open == std::string_view::npos || !parse_number(line.substr(0, open), process.pid)) {
        return std::nullopt;
    }
    // Counted from the state (field 3 of proc(5)): 1 parent, 2 group, 3 session, 19 start time.
    const auto words = words_after_command(line);
    if (words.size() < 20 || words[0].size() != 1) {
        return std::nullopt;
    }
    process.state = words[0][0];
    if (!parse_number(words[1], process.parent) || !parse_number(words[2], process.group) ||
        !parse_number(words[3], process.session) || !parse_number(words[19], process.start_ticks)) {
        return std::nullopt;
    }
    return process;
}

std::optional<Process> read_process(pid_t pid) {
    const std::string folder = fmt::format("/proc/{}", pid);
    auto process = parse_process_stat(read_kernel_file(folder + "/stat", kStatBytesMax));
    struct stat facts = {};
    if (!process || ::stat(folder.c_str(), &facts) != 0) {
        return std::nullopt;
    }
    process->uid = facts.st_uid;
    return process;
}

std::vector<Process> all_processes() {
    std::vector<Process> processes;
    constexpr std::size_t kEntriesMax = 8 << 20;  // above the kernel's largest pid_max
    const Fd folder(::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    for (const std::string& name : names_in(folder.get(), kEntriesMax)) {
        pid_t pid = 0;
        if (!parse_number(std::string_view(name), pid)) {
            continue;
        }
        if (const auto process = read_process(pid)) {
            processes.push_back(*process);
        }
    }
    return processes;
}

std::vector<Process> descendants_of(pid_t root, const std::vector<Process>& all) {
    std::unordered_multimap<pid_t, const Process*> children;
    for (const Process& process : all) {
        children.emplace(process.parent, &process);
    }
    std::vector<Process> found;
    std::set<pid_t> seen = {root};  // a snapshot taken while processes move may show a circle
    std::vector<pid_t> open = {root};
    while (!open.empty()) {
        const pid_t parent = open.back();
        open.pop_back();
        const auto [first, last] = children.equal_range(parent);
        for (auto child = first; child != last; ++child) {
            if (seen.insert(child->second->pid).second) {
                found.push_back(*child->second);
                open.push_back(child->second->pid);
            }
        }
    }
    return found;
}

// By number: glibc 2.36 declares its wrappers without extern "C".
Fd open_pidfd(pid_t pid) {
    return Fd(pid > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)) : -1);
}

Fd open_process(pid_t pid, std::uint64_t start_ticks) {
    Fd handle = open_pidfd(pid);
    if (!handle.is_open()) {
        return {};
    }
    // The handle pins whoever has the id now; the start time says whether that is the one meant.
    const auto now = read_process(pid);
    if (!now || now->start_ticks != start_ticks || !now->is_running()) {
        return {};
    }
    return handle;
}

bool signal_process(const Process& process, int signal) {
    const Fd handle = open_process(process.pid, process.start_ticks);
    return handle.is_open() &&
           ::syscall(SYS_pidfd_send_signal, handle.get(), signal, nullptr, 0) == 0;
}

bool has_environment(pid_t pid, const std::vector<std::string>& entries) {
    // Entries are separated by NUL; one in front makes every entry `\0NAME=value\0`.
    const std::string text =
        std::string(1, '\0') +
        read_kernel_file(fmt::format("/proc/{}/environ", pid), kEnvironmentBytesMax) +
        std::string(1, '\0');
    for (const std::string& entry : entries) {
        const std::string wanted = std::string(1, '\0') + entry + std::string(1, '\0');
        if (text.find(wanted) == std::string::npos) {
            return false;
        }
    }
    return !entries.empty();
}

std::string boot_id() {
    std::string text = read_kernel_file("/proc/sys/kernel/random/boot_id", 64);
    while (!text.empty() && text.back() == '\n') {
        text.pop_back();
    }
    return text;
}

}  // namespace holdfast::agent
