#!/bin/sh
# Creates the certificates and keys of a federation. Existing certificates and keys are never overwritten.
#
#   certificates.sh ca FOLDER            ca.key and ca.crt: a certificate authority, valid for ten years
#   certificates.sh server FOLDER HOST   server.key and server.crt for HOST, signed by that authority, valid for a year
#   certificates.sh node FOLDER NAME     NAME and NAME.pub: the key pair of a node
#
# HOST is the name or the IPv4 address by which the nodes reach the SuperLink.
# Keep ca.key off the server: whoever has it can impersonate the SuperLink.
set -eu
umask 077

fail() {
    echo "error: $1" >&2
    exit 2
}

[ $# -ge 2 ] || fail "expected a command and a folder; see the comment at the top of $0"
command=$1 folder=$2

new() {
    [ ! -e "$folder/$1" ] || fail "$folder/$1 exists; move it away first"
}

# Files are created in this folder and moved when all of them are complete, so that a failure leaves nothing behind.
begin() {
    mkdir -p "$folder"
    part=$(mktemp -d "$folder/.part.XXXXXX")
    trap 'rm -rf "$part"' EXIT
}

# OpenSSL reports its progress as well as errors on standard error, which is shown only if it fails.
quietly() {
    "$@" 2>"$part/errors" || {
        cat "$part/errors" >&2
        fail "$1 failed"
    }
}

case $command in
ca)
    [ $# -eq 2 ] || fail "expected: $0 ca FOLDER"
    new ca.key
    new ca.crt
    begin
    quietly openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 \
        -subj "/CN=Federation CA $(date +%Y-%m-%d)" -addext basicConstraints=critical,CA:TRUE \
        -addext keyUsage=critical,keyCertSign,cRLSign -keyout "$part/ca.key" -out "$part/ca.crt"
    chmod 644 "$part/ca.crt"
    mv "$part/ca.key" "$part/ca.crt" "$folder"
    ;;
server)
    [ $# -eq 3 ] || fail "expected: $0 server FOLDER HOST"
    case $3 in
    "" | *[!A-Za-z0-9.-]*) fail "HOST must be a host name or an IPv4 address, got '$3'" ;;
    *[!0-9.]*) kind=DNS ;;
    *) kind=IP ;;
    esac
    new server.key
    new server.crt
    for file in ca.key ca.crt; do
        [ -r "$folder/$file" ] || fail "$folder/$file cannot be read; create an authority with: $0 ca $folder"
    done
    begin
    # The SuperLink starts processes that connect to it by localhost, so the certificate must cover that name as well.
    printf 'subjectAltName=%s:%s,DNS:localhost,IP:127.0.0.1\nbasicConstraints=critical,CA:FALSE\n%s\n' "$kind" "$3" \
        'extendedKeyUsage=serverAuth' > "$part/server.ext"
    quietly openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$3" \
        -keyout "$part/server.key" -out "$part/server.csr"
    quietly openssl x509 -req -in "$part/server.csr" -CA "$folder/ca.crt" -CAkey "$folder/ca.key" \
        -CAserial "$folder/ca.srl" -CAcreateserial -days 365 -extfile "$part/server.ext" -out "$part/server.crt"
    chmod 644 "$part/server.crt"
    mv "$part/server.key" "$part/server.crt" "$folder"
    ;;
node)
    [ $# -eq 3 ] || fail "expected: $0 node FOLDER NAME"
    case $3 in
    "" | .* | */*) fail "NAME must be the name of a file, got '$3'" ;;
    esac
    new "$3"
    new "$3.pub"
    mkdir -p "$folder"
    ssh-keygen -q -t ecdsa -b 384 -N "" -C "$3" -f "$folder/$3"
    ;;
*)
    fail "unknown command '$command'; expected ca, server or node"
    ;;
esac
