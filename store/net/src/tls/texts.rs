//! What went wrong in a handshake, in the words that etcd's users know from Go's library.
//!
//! A check of a certificate can hand the TLS library only the kind of alert to send. What it found
//! in words it notes here; the handshake that runs it picks that up. Checks run within the poll of
//! their handshake, so a note never lands in another's.

use std::cell::RefCell;
use std::future::Future;
use std::io;

use rustls::{AlertDescription, Error, PeerIncompatible};
use x509_parser::time::ASN1Time;

tokio::task_local! {
    static NOTE: RefCell<Option<String>>;
}

/// Notes why the handshake that runs now is refused.
pub(super) fn note(text: impl Into<String>) {
    let text = text.into();
    // Without a handshake around it, as in a test of a check alone, nobody wants the note.
    let _ = NOTE.try_with(|note| *note.borrow_mut() = Some(text));
}

/// Runs a handshake; an error comes with its reason.
pub(super) async fn explained<T>(
    handshake: impl Future<Output = io::Result<T>>,
) -> Result<T, (io::Error, String)> {
    NOTE.scope(RefCell::new(None), async {
        handshake.await.map_err(|error| {
            let note = NOTE.with(|note| note.borrow_mut().take());
            let text = note.unwrap_or_else(|| reason(&error));
            (error, text)
        })
    })
    .await
}

/// The TLS library's error within an error of a stream.
fn of_library(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref::<Error>()
}

/// An error of a stream in words.
pub(super) fn reason(error: &io::Error) -> String {
    match of_library(error) {
        Some(Error::AlertReceived(alert)) => format!("remote error: tls: {}", of_alert(*alert)),
        Some(Error::NoCertificatesPresented) => "tls: client didn't provide a certificate".into(),
        Some(Error::NoApplicationProtocol) => {
            "tls: client requested unsupported application protocols".into()
        }
        Some(Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon)) => {
            "tls: no cipher suite supported by both client and server".into()
        }
        // A greeting without signature algorithms is one of TLS 1.1 or before.
        Some(Error::PeerIncompatible(
            PeerIncompatible::SignatureAlgorithmsExtensionRequired
            | PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::Tls13RequiredForQuic
            | PeerIncompatible::SupportedVersionsExtensionRequired
            | PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig,
        )) => "tls: client offered only unsupported versions".into(),
        Some(error) => format!("tls: {error}"),
        None if error.kind() == io::ErrorKind::UnexpectedEof => "EOF".into(),
        None => error.to_string(),
    }
}

/// The same error with words that say more; others are left as they are.
pub(super) fn reworded(error: io::Error) -> io::Error {
    match of_library(&error) {
        Some(_) => io::Error::new(error.kind(), reason(&error)),
        None => error,
    }
}

fn of_alert(alert: AlertDescription) -> String {
    let text = match alert {
        AlertDescription::CloseNotify => "close notify",
        AlertDescription::UnexpectedMessage => "unexpected message",
        AlertDescription::BadRecordMac => "bad record MAC",
        AlertDescription::RecordOverflow => "record overflow",
        AlertDescription::HandshakeFailure => "handshake failure",
        AlertDescription::BadCertificate => "bad certificate",
        AlertDescription::UnsupportedCertificate => "unsupported certificate",
        AlertDescription::CertificateRevoked => "revoked certificate",
        AlertDescription::CertificateExpired => "expired certificate",
        AlertDescription::CertificateUnknown => "unknown certificate",
        AlertDescription::IllegalParameter => "illegal parameter",
        AlertDescription::UnknownCA => "unknown certificate authority",
        AlertDescription::AccessDenied => "access denied",
        AlertDescription::DecodeError => "error decoding message",
        AlertDescription::DecryptError => "error decrypting message",
        AlertDescription::ProtocolVersion => "protocol version not supported",
        AlertDescription::InsufficientSecurity => "insufficient security level",
        AlertDescription::InternalError => "internal error",
        AlertDescription::InappropriateFallback => "inappropriate fallback",
        AlertDescription::UserCanceled => "user canceled",
        AlertDescription::NoRenegotiation => "no renegotiation",
        AlertDescription::MissingExtension => "missing extension",
        AlertDescription::UnsupportedExtension => "unsupported extension",
        AlertDescription::UnrecognisedName => "unrecognized name",
        AlertDescription::UnknownPSKIdentity => "unknown PSK identity",
        AlertDescription::CertificateRequired => "certificate required",
        AlertDescription::NoApplicationProtocol => "no application protocol",
        other => return format!("{other:?}"),
    };
    text.into()
}

/// A date as in `2026-01-31T12:00:00Z`.
pub(super) fn date(seconds: i64) -> String {
    let Ok(time) = ASN1Time::from_timestamp(seconds) else { return seconds.to_string() };
    let time = time.to_datetime();
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        time.year(),
        u8::from(time.month()),
        time.day(),
        time.hour(),
        time.minute(),
        time.second(),
    )
}
