"""Tokens, good and bad, and an issuer that publishes its keys."""

import base64
import hashlib
import hmac
import http.server
import json
import threading
import time

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

SECRET = "a-secret-that-is-long-enough-for-hs256-0123456789"


def claims(role="admin", **more):
    return {"sub": "tester", "role": role, "exp": time.time() + 300, **more}


def hs256(role="admin", secret=SECRET, **more):
    return jwt.encode(claims(role, **more), secret, algorithm="HS256")


def forged(header, body, key=b""):
    """A token that no library would make."""
    part = lambda value: base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")
    signed = part(header) + b"." + part(body)
    tag = base64.urlsafe_b64encode(hmac.digest(key, signed, hashlib.sha256)).rstrip(b"=") if key else b""
    return (signed + b"." + tag).decode()


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


class Signer:
    """A key pair with an id."""

    def __init__(self, algorithm, kid):
        self.algorithm = algorithm
        self.kid = kid
        is_rsa = algorithm.startswith("RS")
        self.private = rsa.generate_private_key(65537, 2048) if is_rsa else ed25519.Ed25519PrivateKey.generate()

    def token(self, role="admin", algorithm=None, kid=..., **more):
        kid = self.kid if kid is ... else kid
        headers = {} if kid is None else {"kid": kid}
        return jwt.encode(claims(role, **more), self.private, algorithm or self.algorithm, headers=headers)

    def pem(self):
        kind = serialization.PublicFormat.SubjectPublicKeyInfo
        return self.private.public_key().public_bytes(serialization.Encoding.PEM, kind).decode()

    def published(self):
        kind = jwt.algorithms.RSAAlgorithm if self.algorithm.startswith("RS") else jwt.algorithms.OKPAlgorithm
        return {**json.loads(kind.to_jwk(self.private.public_key())), "kid": self.kid, "use": "sig"}


class Issuer:
    """Serves a JWKS document, with `tls` over HTTPS; `down` makes it answer with an error."""

    def __init__(self, *signers, tls=None):
        self.signers = list(signers)
        self.down = False
        self.asked = 0
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                issuer.asked += 1
                body = json.dumps({"keys": [signer.published() for signer in issuer.signers]}).encode()
                self.send_response(500 if issuer.down else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://localhost:{self.server.server_port}/keys"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
