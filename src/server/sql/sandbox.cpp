// SPDX-License-Identifier: Apache-2.0
#include "sandbox.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <vector>

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace holdfast::server::sql {
namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#endif

// Sanitizers map terabytes of shadow and call what the filter refuses; SQLite's own heap limit
// holds under them, too.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif

/// Each with the reason: what code that takes SQLite over would want first.
constexpr std::array kRefused = {
    SYS_execve,
    SYS_execveat,  // run a program
    SYS_socket,
    SYS_socketpair,  // reach the network or another daemon
    SYS_connect,
    SYS_bind,
    SYS_sendto,  // (descriptors that we do not have)
    SYS_clone,
    SYS_clone3,  // go on in a process that no limit ends
#ifdef SYS_fork
    SYS_fork,
    SYS_vfork,
#endif
    SYS_ptrace,
    SYS_process_vm_readv,  // look into the server, which has our uid
    SYS_process_vm_writev,
    SYS_kill,
    SYS_tkill,
    SYS_tgkill,  // end it
    SYS_pidfd_open,
    SYS_unlinkat,
    SYS_renameat,
    SYS_renameat2,
    SYS_linkat,
    SYS_symlinkat,
    SYS_mkdirat,
#ifdef SYS_unlink
    SYS_unlink,
    SYS_rename,
    SYS_link,
    SYS_symlink,
    SYS_mkdir,
    SYS_rmdir,
    SYS_chmod,
#endif
    SYS_fchmod,
    SYS_fchmodat,
    SYS_fchown,
    SYS_fchownat,
    SYS_truncate,
    SYS_mount,
    SYS_umount2,
    SYS_unshare,
    SYS_setns,
    SYS_bpf,
    SYS_keyctl,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_io_uring_setup,
};

Result<> filter_system_calls() {
    std::vector<sock_filter> program;
    const auto add = [&](unsigned code, std::uint32_t value, unsigned yes, unsigned no) {
        program.push_back({static_cast<std::uint16_t>(code), static_cast<std::uint8_t>(yes),
                           static_cast<std::uint8_t>(no), value});
    };
    add(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch), 0, 0);
    add(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0);
    add(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS, 0, 0);
    add(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr), 0, 0);
#if defined(__x86_64__)
    constexpr std::uint32_t kX32 = 0x40000000;  // the other numbering of the same calls
    add(BPF_JMP | BPF_JGE | BPF_K, kX32, 0, 1);
    add(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS, 0, 0);
#endif
    for (const auto number : kRefused) {
        add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 1);
        add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM, 0, 0);
    }
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
    const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
        return fail(Errc::internal, "filter system calls: errno {}", errno);
    }
    return {};
}

Result<> limit(int what, std::uint64_t value, const char* name) {
    const rlimit bound{value, value};
    if (setrlimit(static_cast<__rlimit_resource>(what), &bound) != 0) {
        return fail(Errc::internal, "limit {}: errno {}", name, errno);
    }
    return {};
}

}  // namespace

Result<> enter_sandbox(const Limits& limits) {
    if (close_range(3, ~0U, 0) != 0) {
        return fail(Errc::internal, "close descriptors: errno {}", errno);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_DUMPABLE, 0);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
        return fail(Errc::internal, "give up new privileges: errno {}", errno);
    }
    HOLD_TRY(limit(RLIMIT_CORE, 0, "core dumps"));
    HOLD_TRY(limit(RLIMIT_CPU, static_cast<std::uint64_t>(limits.cpu_s), "processor time"));
    HOLD_TRY(limit(RLIMIT_NOFILE, 32, "open files"));
    std::signal(SIGXFSZ, SIG_IGN);
    HOLD_TRY(limit(RLIMIT_FSIZE, 0, "file sizes"));
    if constexpr (!kIsSanitized) {
        HOLD_TRY(limit(RLIMIT_AS, limits.memory_bytes, "memory"));
        HOLD_TRY(filter_system_calls());
    }
    return {};
}

}  // namespace holdfast::server::sql
