// SPDX-License-Identifier: Apache-2.0
// The server's own certificate authority: DATA/tls holds ca.crt, ca.key, server.crt, server.key
// (keys with mode 0600), made at the first start with `--listen`. The server's certificate is made
// anew when it nears its end or does not name the host that is listened on; the authority stays, so
// clients keep their ca.crt. Without ca.key the files are the operator's own and used as they are.
#pragma once

#include <string>
#include <vector>

#include <holdfast/env.hpp>
#include <holdfast/result.hpp>

namespace holdfast::server {

struct TlsFiles {
    std::string ca_pem;
    std::string certificate_pem;
    std::string key_pem;
};

/// `hosts`: names and addresses that the certificate must carry.
/// Errors: those of Files; store_corrupt for a file that is there but no certificate or key.
Result<TlsFiles> ensure_tls(Env& env, const std::string& folder,
                            const std::vector<std::string>& hosts);

}  // namespace holdfast::server
