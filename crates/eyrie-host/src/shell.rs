//! Commands for other hosts: ssh without prompts, and words quoted for a shell. Starts nothing.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::Command;

/// `ssh`, or a program with the same arguments, to a host; the remote command is appended. It never
/// asks for a password, because no user may be present to type one.
pub fn ssh(program: &OsStr, connect_timeout_s: u32, host: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["-T", "-o", "BatchMode=yes", "-o"]);
    command.arg(format!("ConnectTimeout={connect_timeout_s}")).arg(host);
    command
}

/// What ssh exits with when it is ssh that has failed, or when a signal has ended its command.
pub const SSH_FAILED: i32 = 255;

/// Words as a shell reads them, each unchanged.
pub fn words<W: AsRef<OsStr>>(words: impl IntoIterator<Item = W>) -> OsString {
    let words: Vec<OsString> = words.into_iter().map(|word| quoted(word.as_ref())).collect();
    words.join(OsStr::new(" "))
}

/// Quotes a word so that a shell reads it unchanged.
pub fn quoted(word: &OsStr) -> OsString {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"/._-=:,+@%".contains(b);
    let bytes = word.as_bytes();
    if !bytes.is_empty() && bytes.iter().all(plain) {
        return word.into();
    }
    let mut text = vec![b'\''];
    for byte in bytes {
        match byte {
            b'\'' => text.extend(br"'\''"),
            other => text.push(*other),
        }
    }
    text.push(b'\'');
    OsString::from_vec(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_through_a_shell_as_they_are() {
        for word in ["plain/1.0", "", "two words", "it's", "$HOME;`x`\n*"] {
            let mut script = OsString::from("printf %s ");
            script.push(quoted(OsStr::new(word)));
            let shell = Command::new("sh").arg("-c").arg(script).output();
            assert_eq!(String::from_utf8(shell.unwrap().stdout).unwrap(), word);
        }
        assert_eq!(words(["/opt/my eyrie", "stop", ""]), "'/opt/my eyrie' stop ''");
    }
}
