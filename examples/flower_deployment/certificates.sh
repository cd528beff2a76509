#!/bin/sh
# Creates the certificates and keys of a federation. Existing files are never overwritten.
#
#   certificates.sh ca FOLDER            ca.key and ca.crt: a certificate authority, valid for ten years
#   certificates.sh server FOLDER HOST   server.key and server.crt for HOST, signed by that authority, valid for a year
#   certificates.sh node FOLDER NAME     NAME and NAME.pub: the key pair of a node
#
# Keep ca.key off the server: whoever has it can impersonate the SuperLink.
set -eu
umask 077

fail() {
    echo "error: $1" >&2
    exit 2
}

[ $# -ge 2 ] || fail "expected a command and a folder; see the comment at the top of $0"
command=$1 folder=$2
mkdir -p "$folder"

new() {
    [ ! -e "$folder/$1" ] || fail "$folder/$1 exists; move it away first"
}

case $command in
ca)
    new ca.key
    new ca.crt
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 \
        -subj "/CN=Federation CA $(date +%Y-%m-%d)" -addext basicConstraints=critical,CA:TRUE \
        -addext keyUsage=critical,keyCertSign,cRLSign -keyout "$folder/ca.key" -out "$folder/ca.crt" 2>/dev/null
    chmod 644 "$folder/ca.crt"
    ;;
server)
    [ $# -eq 3 ] || fail "expected: $0 server FOLDER HOST"
    new server.key
    new server.crt
    # The SuperLink starts processes that connect to it by localhost, so the certificate must cover that name as well.
    printf 'subjectAltName=DNS:%s,DNS:localhost,IP:127.0.0.1\nbasicConstraints=critical,CA:FALSE\n%s\n' "$3" \
        'extendedKeyUsage=serverAuth' > "$folder/server.ext"
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$3" \
        -keyout "$folder/server.key" -out "$folder/server.csr" 2>/dev/null
    openssl x509 -req -in "$folder/server.csr" -CA "$folder/ca.crt" -CAkey "$folder/ca.key" -CAcreateserial -days 365 \
        -extfile "$folder/server.ext" -out "$folder/server.crt" 2>/dev/null
    rm "$folder/server.csr" "$folder/server.ext"
    chmod 644 "$folder/server.crt"
    ;;
node)
    [ $# -eq 3 ] || fail "expected: $0 node FOLDER NAME"
    new "$3"
    ssh-keygen -q -t ecdsa -b 384 -N "" -C "$3" -f "$folder/$3"
    ;;
*)
    fail "unknown command '$command'; expected ca, server or node"
    ;;
esac
