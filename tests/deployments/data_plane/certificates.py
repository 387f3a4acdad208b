"""Certificates of an authority of the test's own, as a cluster has them."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from socket import AF_INET

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def make_certificates(folder: Path) -> dict[str, str]:
    """An authority, and a certificate of this machine signed by it; gives the environment that Ray would have."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = _signed("authority", authority_key.public_key(), "authority", authority_key, is_authority=True)
    certificate = _signed("a node", key.public_key(), "authority", authority_key, is_authority=False)
    files = {"RAY_TLS_SERVER_CERT": certificate, "RAY_TLS_CA_CERT": authority}
    environment = {"RAY_USE_TLS": "1"}
    for name, each in files.items():
        path = folder / f"{name}.pem"
        path.write_bytes(each.public_bytes(serialization.Encoding.PEM))
        environment[name] = str(path)
    path = folder / "RAY_TLS_SERVER_KEY.pem"
    plain = serialization.NoEncryption()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return {**environment, "RAY_TLS_SERVER_KEY": str(path)}


def _signed(
    subject: str, key: ec.EllipticCurvePublicKey, issuer: str, by: ec.EllipticCurvePrivateKey, *, is_authority: bool
) -> x509.Certificate:
    now = datetime.now(UTC)
    own = [each.address for its in psutil.net_if_addrs().values() for each in its if each.family is AF_INET]
    names: list[x509.GeneralName] = [x509.DNSName("localhost"), *(x509.IPAddress(ip_address(each)) for each in own)]
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(by, hashes.SHA256())
    )
