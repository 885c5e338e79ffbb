// SPDX-License-Identifier: Apache-2.0
#include "tls.hpp"

#include <memory>

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

namespace holdfast::server {
namespace {

constexpr std::size_t kPemBytesMax = 64 << 10;
constexpr std::int64_t kDayUs = 86'400 * kSecondUs;
constexpr long kCaDays = 3650;
constexpr long kServerDays = 397;  // what TLS clients accept at most
constexpr long kRenewDays = 30;

template <auto Free>
struct Deleter {
    template <typename T>
    void operator()(T* object) const {
        Free(object);
    }
};

using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Deleter<X509_free>>;
using Memory = std::unique_ptr<BIO, Deleter<BIO_free_all>>;
using Extension = std::unique_ptr<X509_EXTENSION, Deleter<X509_EXTENSION_free>>;

tl::unexpected<Error> openssl_failed(const char* what) {
    const unsigned long code = ERR_get_error();
    const char* reason = ERR_reason_error_string(code);
    ERR_clear_error();
    return fail(Errc::internal, "{}: OpenSSL says {}", what,
                reason == nullptr ? "nothing" : reason);
}

std::string text_of(BIO* memory) {
    char* bytes = nullptr;
    const long size = BIO_get_mem_data(memory, &bytes);
    return {bytes, static_cast<std::size_t>(size)};
}

std::string pem_of(const Key& key) {
    const Memory memory(BIO_new(BIO_s_mem()));
    PEM_write_bio_PKCS8PrivateKey(memory.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    return text_of(memory.get());
}

std::string pem_of(const Certificate& certificate) {
    const Memory memory(BIO_new(BIO_s_mem()));
    PEM_write_bio_X509(memory.get(), certificate.get());
    return text_of(memory.get());
}

Memory memory_over(const std::string& text) {
    return Memory(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

bool add_extension(X509* certificate, X509V3_CTX* context, int id, const std::string& value) {
    const Extension extension(X509V3_EXT_conf_nid(nullptr, context, id, value.c_str()));
    return extension && X509_add_ext(certificate, extension.get(), -1) == 1;
}

struct Subject {
    std::string name;
    long days = 0;
    std::vector<std::pair<int, std::string>> extensions;
};

/// A certificate over `key`, signed by `issuer` (itself where null) with `signer`.
Result<Certificate> sign(Env& env, const Subject& subject, const Key& key, X509* issuer,
                         const Key& signer) {
    Certificate certificate(X509_new());
    X509* raw = certificate.get();
    // A random 127-bit serial, as the web's rules ask for.
    const std::string serial = env.random.hex(16);
    BIGNUM* number = nullptr;
    BN_hex2bn(&number, serial.c_str());
    BN_clear_bit(number, 127);
    BN_to_ASN1_INTEGER(number, X509_get_serialNumber(raw));
    BN_free(number);
    X509_set_version(raw, 2);
    time_t now = static_cast<time_t>(env.clock.wall_us() / kSecondUs);
    X509_time_adj_ex(X509_getm_notBefore(raw), -1, 0, &now);  // clients' clocks may be behind
    X509_time_adj_ex(X509_getm_notAfter(raw), static_cast<int>(subject.days), 0, &now);
    X509_set_pubkey(raw, key.get());
    X509_NAME* name = X509_get_subject_name(raw);
    // SAFETY: OpenSSL takes text as unsigned bytes; char may alias it.
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                               reinterpret_cast<const unsigned char*>(subject.name.c_str()), -1, -1,
                               0);
    X509_set_issuer_name(raw, issuer == nullptr ? name : X509_get_subject_name(issuer));
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, issuer == nullptr ? raw : issuer, raw, nullptr, nullptr, 0);
    for (const auto& [id, value] : subject.extensions) {
        if (!add_extension(raw, &context, id, value)) {
            return openssl_failed("add an extension to a certificate");
        }
    }
    if (X509_sign(raw, signer.get(), EVP_sha256()) == 0) {
        return openssl_failed("sign a certificate");
    }
    return certificate;
}

struct Authority {
    Certificate certificate;
    Key key;
};

Result<Authority> make_authority(Env& env, const std::string& folder) {
    Authority authority;
    authority.key.reset(EVP_EC_gen("P-256"));
    if (!authority.key) {
        return openssl_failed("make the CA's key");
    }
    const Subject subject{.name = "Holdfast CA " + env.random.hex(4),
                          .days = kCaDays,
                          .extensions = {{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
                                         {NID_key_usage, "critical,keyCertSign,cRLSign"},
                                         {NID_subject_key_identifier, "hash"}}};
    HOLD_TRY(authority.certificate, sign(env, subject, authority.key, nullptr, authority.key));
    HOLD_TRY(env.files.write_file_atomic(folder + "/ca.key", pem_of(authority.key), 0600));
    HOLD_TRY(env.files.write_file_atomic(folder + "/ca.crt", pem_of(authority.certificate), 0644));
    return authority;
}

Result<Certificate> read_certificate(Env& env, const std::string& path) {
    HOLD_TRY(const std::string pem, env.files.read_file(path, kPemBytesMax));
    Certificate certificate(PEM_read_bio_X509(memory_over(pem).get(), nullptr, nullptr, nullptr));
    if (!certificate) {
        return fail(make_error(Errc::store_corrupt, "read {}: it holds no PEM certificate", path)
                        .advise("remove the tls folder to have all certificates made anew"));
    }
    return certificate;
}

Result<Key> read_key(Env& env, const std::string& path) {
    HOLD_TRY(const std::string pem, env.files.read_file(path, kPemBytesMax));
    Key key(PEM_read_bio_PrivateKey(memory_over(pem).get(), nullptr, nullptr, nullptr));
    if (!key) {
        return fail(make_error(Errc::store_corrupt, "read {}: it holds no PEM private key", path)
                        .advise("remove the tls folder to have all certificates made anew"));
    }
    return key;
}

Result<Authority> ensure_authority(Env& env, const std::string& folder) {
    // ca.crt is written last: without it an interrupted first start begins again.
    if (!env.files.exists(folder + "/ca.crt")) {
        return make_authority(env, folder);
    }
    Authority authority;
    HOLD_TRY(authority.certificate, read_certificate(env, folder + "/ca.crt"));
    if (env.files.exists(folder + "/ca.key")) {
        HOLD_TRY(authority.key, read_key(env, folder + "/ca.key"));
    }
    return authority;
}

bool is_address(const std::string& host) {
    ASN1_OCTET_STRING* parsed = a2i_IPADDRESS(host.c_str());
    ASN1_OCTET_STRING_free(parsed);
    return parsed != nullptr;
}

bool serves(Env& env, X509* certificate, const Key& key, const std::vector<std::string>& hosts) {
    time_t limit = static_cast<time_t>((env.clock.wall_us() + kRenewDays * kDayUs) / kSecondUs);
    if (X509_cmp_time(X509_get0_notAfter(certificate), &limit) <= 0 ||
        X509_check_private_key(certificate, key.get()) != 1) {
        return false;
    }
    for (const std::string& host : hosts) {
        const int match = is_address(host)
                              ? X509_check_ip_asc(certificate, host.c_str(), 0)
                              : X509_check_host(certificate, host.c_str(), 0, 0, nullptr);
        if (match != 1) {
            return false;
        }
    }
    return true;
}

Result<> make_server_certificate(Env& env, const std::string& folder, const Authority& authority,
                                 const std::vector<std::string>& hosts) {
    const Key key(EVP_EC_gen("P-256"));
    if (!key) {
        return openssl_failed("make the server's key");
    }
    std::string names;
    for (const std::string& host : hosts) {
        names += (names.empty() ? "" : ",") + std::string(is_address(host) ? "IP:" : "DNS:") + host;
    }
    const Subject subject{.name = "holdfast server",
                          .days = kServerDays,
                          .extensions = {{NID_basic_constraints, "critical,CA:FALSE"},
                                         {NID_key_usage, "critical,digitalSignature"},
                                         {NID_ext_key_usage, "serverAuth"},
                                         {NID_authority_key_identifier, "keyid:always"},
                                         {NID_subject_alt_name, names}}};
    HOLD_TRY(const Certificate certificate,
             sign(env, subject, key, authority.certificate.get(), authority.key));
    HOLD_TRY(env.files.write_file_atomic(folder + "/server.key", pem_of(key), 0600));
    return env.files.write_file_atomic(folder + "/server.crt", pem_of(certificate), 0644);
}

}  // namespace

Result<TlsFiles> ensure_tls(Env& env, const std::string& folder,
                            const std::vector<std::string>& hosts) {
    HOLD_TRY(env.files.make_directories(folder, 0700));
    HOLD_TRY(const Authority authority, ensure_authority(env, folder));
    bool is_fine = false;
    if (env.files.exists(folder + "/server.crt") && env.files.exists(folder + "/server.key")) {
        HOLD_TRY(const Certificate certificate, read_certificate(env, folder + "/server.crt"));
        HOLD_TRY(const Key key, read_key(env, folder + "/server.key"));
        // Without the CA's key the certificates are the operator's own: used as they are.
        is_fine = !authority.key || serves(env, certificate.get(), key, hosts);
    }
    if (!is_fine && !authority.key) {
        return fail(make_error(Errc::not_found,
                               "{} has a ca.crt but neither its ca.key nor a server.crt and "
                               "server.key of your own",
                               folder)
                        .advise("put both there, or remove the folder to have all made anew"));
    }
    if (!is_fine) {
        HOLD_TRY(make_server_certificate(env, folder, authority, hosts));
    }
    TlsFiles files;
    files.ca_pem = pem_of(authority.certificate);
    HOLD_TRY(files.certificate_pem, env.files.read_file(folder + "/server.crt", kPemBytesMax));
    HOLD_TRY(files.key_pem, env.files.read_file(folder + "/server.key", kPemBytesMax));
    return files;
}

}  // namespace holdfast::server
