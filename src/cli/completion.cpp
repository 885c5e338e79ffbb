// SPDX-License-Identifier: Apache-2.0
#include "help.hpp"
#include "verbs.hpp"

namespace holdfast::cli {

Verb completion_verb() {
    return {.name = "completion",
            .summary = "prints a shell's completion script",
            .group = "About",
            .needs_server = false,
            .declare = [](Flags& flags) -> Command {
                auto shell = std::make_shared<std::optional<std::string>>();
                PositionalInfo& which = flags.positional("SHELL", *shell, "bash, zsh or fish");
                which.completes = Completes::words;
                which.words = {"bash", "zsh", "fish"};
                return [shell](Session& session) -> Result<int> {
                    HOLD_TRY(const std::string script, completion_script(**shell));
                    HOLD_TRY(session.around.out.write(script));
                    return 0;
                };
            },
            .examples = {"source <(hold completion bash)",
                         "hold completion fish > ~/.config/fish/completions/hold.fish"}};
}

}  // namespace holdfast::cli
