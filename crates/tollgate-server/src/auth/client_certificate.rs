//! The names in a verified client certificate, by which callers are found.

use std::fmt;

use x509_parser::prelude::{AttributeTypeAndValue, FromDer, GeneralName, X509Certificate, X509Name};

/// Attributes of a subject with a short name; others are written as their object identifier.
const ATTRIBUTES: [(&str, &str); 12] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "STREET"),
    ("2.5.4.5", "SERIALNUMBER"),
    ("2.5.4.4", "SN"),
    ("2.5.4.42", "GN"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.1", "UID"),
];

/// A name that identifies a caller: exactly one of those in its certificate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CertificateName {
    /// The subject, as RFC 4514 writes it: `CN=billing,O=Acme`.
    Subject(Box<str>),
    /// A DNS name of the subject alternative names, in lower case.
    Dns(Box<str>),
    /// A URI of the subject alternative names, such as a SPIFFE ID.
    Uri(Box<str>),
}

/// What a verified client certificate says about its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The subject first, then the subject alternative names.
    names: Box<[CertificateName]>,
    /// Not valid after this time, in seconds since 1970.
    not_after: u64,
}

impl ClientCertificate {
    /// Reads a certificate in DER; none if it is malformed.
    pub fn parse(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let mut names = Vec::new();
        // An empty subject identifies nobody.
        let subject = subject(certificate.subject());
        if !subject.is_empty() {
            names.push(CertificateName::Subject(subject.into()));
        }
        if let Some(alternatives) = certificate.subject_alternative_name().ok()? {
            names.extend(alternatives.value.general_names.iter().filter_map(|name| match name {
                GeneralName::DNSName(name) => Some(CertificateName::Dns(name.to_ascii_lowercase().into())),
                GeneralName::URI(uri) => Some(CertificateName::Uri((*uri).into())),
                _ => None,
            }));
        }
        let not_after = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0);
        Some(ClientCertificate { names: names.into(), not_after })
    }

    /// Its names.
    pub fn names(&self) -> &[CertificateName] {
        &self.names
    }

    /// Whether it has expired since the handshake.
    pub fn is_expired(&self, now: tollgate::Timestamp) -> bool {
        now.as_micros() / 1_000_000 > self.not_after
    }
}

impl fmt::Display for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.names.first() {
            Some(
                CertificateName::Subject(name) | CertificateName::Dns(name) | CertificateName::Uri(name),
            ) => {
                write!(f, "{name:?}")
            }
            None => f.write_str("without a name"),
        }
    }
}

/// RFC 4514: the last element first, separated by commas; those of one element by plus signs.
fn subject(name: &X509Name<'_>) -> String {
    let elements: Vec<String> = name
        .iter_rdn()
        .map(|element| {
            let attributes: Vec<String> = element.iter().map(attribute).collect();
            attributes.join("+")
        })
        .collect();
    elements.into_iter().rev().collect::<Vec<_>>().join(",")
}

fn attribute(attribute: &AttributeTypeAndValue<'_>) -> String {
    let oid = attribute.attr_type().to_id_string();
    let name = ATTRIBUTES.iter().find(|(known, _)| *known == oid).map_or(&*oid, |(_, name)| name);
    match attribute.as_str() {
        Ok(value) => format!("{name}={}", escaped(value)),
        // Of another type than text: written so that it equals no text.
        Err(_) => format!("{name}=#{}", hex(attribute.as_slice())),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// Escapes what would end or change a value.
fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for (at, letter) in value.char_indices() {
        let is_end = at == 0 || at + letter.len_utf8() == value.len();
        let is_special = matches!(letter, ',' | '+' | '"' | '\\' | '<' | '>' | ';')
            || (letter == '#' && at == 0)
            || (letter == ' ' && is_end);
        if is_special {
            text.push('\\');
        }
        text.push(letter);
    }
    text
}

/// Reads a subject as a person writes it, with spaces around separators and names in any case.
///
/// # Errors
/// When it is not a list of attributes.
pub(crate) fn parse_subject(text: &str) -> Result<CertificateName, String> {
    let invalid = || {
        "must be a subject such as \"CN=billing,O=Acme\"; print that of a certificate with `openssl x509 -noout -subject -nameopt RFC2253 -in FILE`".to_owned()
    };
    let mut elements = Vec::new();
    for element in split(text, ',') {
        let mut attributes = Vec::new();
        for attribute in split(&element, '+') {
            let (name, value) = attribute.split_once('=').ok_or_else(invalid)?;
            let (name, value) = (name.trim().to_ascii_uppercase(), unescaped(value.trim_start()));
            if name.is_empty() || value.is_empty() {
                return Err(invalid());
            }
            attributes.push(format!("{name}={}", escaped(&value)));
        }
        elements.push(attributes.join("+"));
    }
    Ok(CertificateName::Subject(elements.join(",").into()))
}

/// Splits at a separator that is not escaped.
fn split(text: &str, separator: char) -> Vec<String> {
    let (mut parts, mut is_escaped) = (vec![String::new()], false);
    for letter in text.chars() {
        if letter == separator && !is_escaped {
            parts.push(String::new());
            continue;
        }
        is_escaped = letter == '\\' && !is_escaped;
        if let Some(part) = parts.last_mut() {
            part.push(letter);
        }
    }
    parts
}

/// Removes escapes, and spaces at the end that are not escaped.
fn unescaped(value: &str) -> String {
    let (mut text, mut kept, mut is_escaped) = (String::new(), 0, false);
    for letter in value.chars() {
        if letter == '\\' && !is_escaped {
            is_escaped = true;
            continue;
        }
        text.push(letter);
        if letter != ' ' || is_escaped {
            kept = text.len();
        }
        is_escaped = false;
    }
    text.truncate(kept);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> String {
        match parse_subject(text).unwrap() {
            CertificateName::Subject(subject) => subject.into(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn subjects_are_compared_in_one_form() {
        for (written, form) in [
            ("CN=billing,O=Acme", "CN=billing,O=Acme"),
            (" cn = billing , o = Acme ", "CN=billing,O=Acme"),
            ("CN=Acme\\, Inc.,C=DE", "CN=Acme\\, Inc.,C=DE"),
            ("CN=a+UID=b,O=c", "CN=a+UID=b,O=c"),
            ("CN=a\\+b", "CN=a\\+b"),
            ("CN=trailing\\ ", "CN=trailing\\ "),
        ] {
            assert_eq!(parsed(written), form, "{written}");
        }
        for invalid in ["", "billing", "CN=", "=a", "CN=a,", "CN=a,b"] {
            assert!(parse_subject(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn value_cannot_imitate_another_attribute() {
        assert_eq!(format!("CN={}", escaped("a,O=Acme")), "CN=a\\,O=Acme");
        assert_ne!(parsed("CN=a\\,O=Acme"), parsed("CN=a,O=Acme"));
    }

    #[test]
    fn malformed_certificate_has_no_names() {
        for bytes in [&b""[..], b"\x30", b"not a certificate", &[0x30, 0x82, 0xff, 0xff]] {
            assert_eq!(ClientCertificate::parse(bytes), None);
        }
    }
}
