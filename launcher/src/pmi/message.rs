//! What is said in PMI-1 and PMI-2, without I/O. Servers write the fields of a message in any order
//! and leave some out, so that a message is a map.

/// Bytes of a message at most. Values have 1024, and some servers send a few at once.
pub(super) const LONGEST: usize = 64 << 10;
/// Bytes that say how long a message of PMI-2 is.
pub(super) const PREFIX: usize = 6;

/// A message that was understood.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Message(Vec<(String, String)>);

impl Message {
    /// Reads a line of PMI-1, `cmd=NAME key=value ...`.
    pub(super) fn of_line(line: &[u8]) -> Result<Message, String> {
        let text = text_of(line)?;
        // What has no "=" is a word of the sentence in `msg` in front of it.
        let fields = text.split_ascii_whitespace().filter_map(|word| word.split_once('='));
        Self::of_fields(fields.map(|(key, value)| (key.to_owned(), value.to_owned())), line)
    }

    /// Reads a message of PMI-2 behind its length, `cmd=NAME;key=value;...;`. A semicolon in a
    /// value is written twice.
    pub(super) fn of_frame(frame: &[u8]) -> Result<Message, String> {
        let text = text_of(frame)?;
        let mut fields = Vec::new();
        let mut field = String::new();
        let mut letters = text.chars().peekable();
        let mut take = |field: &mut String| -> Result<(), String> {
            let whole = std::mem::take(field);
            match whole.split_once('=') {
                Some((key, value)) => fields.push((key.to_owned(), value.to_owned())),
                None if whole.trim().is_empty() => {}
                None => return Err(format!("{} has no value", shown(whole.as_bytes()))),
            }
            Ok(())
        };
        while let Some(letter) = letters.next() {
            if letter != ';' || letters.next_if_eq(&';').is_some() {
                field.push(letter);
            } else {
                take(&mut field)?;
            }
        }
        take(&mut field)?;
        Self::of_fields(fields.into_iter(), frame)
    }

    fn of_fields(
        fields: impl Iterator<Item = (String, String)>,
        whole: &[u8],
    ) -> Result<Message, String> {
        let message = Message(fields.collect());
        match message.get("cmd") {
            Some(_) => Ok(message),
            None => Err(format!("{} is no message", shown(whole))),
        }
    }

    /// The value of a field.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// The number in a field.
    pub(super) fn number(&self, key: &str) -> Result<u32, String> {
        let found = self.get(key);
        found.and_then(|text| text.parse().ok()).ok_or_else(|| match found {
            Some(text) => format!("{key} is {}, and no number", shown(text.as_bytes())),
            None => format!("the answer says nothing of {key}"),
        })
    }

    /// Itself, if it is the answer of that name, and says of no error.
    pub(super) fn answering(self, name: &str) -> Result<Message, String> {
        let cmd = self.get("cmd").unwrap_or_default();
        if cmd != name {
            return Err(format!("{} came instead of {name}", shown(cmd.as_bytes())));
        }
        match self.get("rc") {
            None | Some("0") => Ok(self),
            Some(code) => {
                let why = self.get("errmsg").or_else(|| self.get("msg")).unwrap_or("no reason");
                Err(format!(
                    "{name} failed with {}: {}",
                    shown(code.as_bytes()),
                    shown(why.as_bytes())
                ))
            }
        }
    }
}

/// A line of PMI-1.
pub(super) fn line(cmd: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut text = format!("cmd={cmd}");
    fields.iter().for_each(|(key, value)| text.push_str(&format!(" {key}={value}")));
    text.push('\n');
    text.into_bytes()
}

/// A message of PMI-2, with its length in front.
pub(super) fn frame(cmd: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut text = format!("cmd={cmd};");
    for (key, value) in fields {
        text.push_str(&format!("{key}={};", value.replace(';', ";;")));
    }
    format!("{:<PREFIX$}{text}", text.len()).into_bytes()
}

/// The length that stands in front of a message of PMI-2: hydra writes blanks in front of it, Slurm
/// behind it.
pub(super) fn announced(prefix: [u8; PREFIX]) -> Result<usize, String> {
    let digits = prefix.trim_ascii();
    let length = match digits.iter().all(u8::is_ascii_digit) {
        true => std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()),
        false => None,
    };
    match length {
        Some(length @ 1..=LONGEST) => Ok(length),
        Some(length) => Err(format!("a message of {length} bytes, where 1 to {LONGEST} may be")),
        None => Err(format!("{} is no length of a message", shown(&prefix))),
    }
}

fn text_of(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|_| format!("{} is no text", shown(bytes)))
}

/// Bytes fit to be printed: quoted, and not longer than a line.
pub(super) fn shown(bytes: &[u8]) -> String {
    const SHOWN: usize = 60;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * SHOWN)]).into_owned();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_of_a_line_come_in_any_order() {
        for text in [
            "cmd=get_result rc=0 msg=success value=(vector,(0,1,4))",
            "value=(vector,(0,1,4)) rc=0 cmd=get_result",
            "cmd=get_result  msg=it is there value=(vector,(0,1,4)) \n",
        ] {
            let message = Message::of_line(text.as_bytes()).unwrap();
            let message = message.answering("get_result").unwrap();
            assert_eq!(message.get("value"), Some("(vector,(0,1,4))"), "{text}");
        }
    }

    #[test]
    fn an_error_is_one_whatever_else_the_answer_holds() {
        let hydra = "cmd=get_result rc=-1 msg=key_a_not_found value=unknown";
        let slurm = "cmd=get_result rc=1 msg=key_not_found";
        for (text, code) in [(hydra, "\"-1\""), (slurm, "\"1\"")] {
            let message = Message::of_line(text.as_bytes()).unwrap();
            let error = message.answering("get_result").unwrap_err();
            assert!(error.contains(code) && error.contains("not_found"), "{error}");
        }
        let frame = Message::of_frame(b"cmd=kvs-get-response;rc=14;errmsg=no such key;").unwrap();
        let error = frame.answering("kvs-get-response").unwrap_err();
        assert!(error.contains("no such key"), "{error}");
        let maxes = Message::of_line(b"cmd=maxes kvsname_max=256 vallen_max=1024").unwrap();
        assert_eq!(maxes.answering("maxes").unwrap().number("vallen_max"), Ok(1024));
    }

    #[test]
    fn an_answer_to_another_question_is_refused() {
        let message = Message::of_line(b"cmd=barrier_out").unwrap();
        assert!(message.answering("get_result").unwrap_err().contains("barrier_out"));
    }

    #[test]
    fn numbers_are_numbers() {
        let message = Message::of_line(b"cmd=set size=4 rank=x debug=").unwrap();
        assert_eq!(message.number("size"), Ok(4));
        for key in ["rank", "debug", "appnum"] {
            assert!(message.number(key).unwrap_err().contains(key));
        }
    }

    #[test]
    fn a_length_is_aligned_to_either_side() {
        assert_eq!(announced(*b"    31"), Ok(31));
        assert_eq!(announced(*b"31    "), Ok(31));
        for wrong in [b"      ", b"-00031", b"+31   ", b"3 1   ", b"abcdef", b"999999", b"     0"] {
            assert!(announced(*wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_no_message_is_refused_and_shown_short() {
        for wrong in [&b""[..], b"\n", b"hello", b"rc=0", &[0xff, 0xfe], &[b'x'; 10_000]] {
            for error in [Message::of_line(wrong), Message::of_frame(wrong)] {
                assert!(error.unwrap_err().len() < 200, "{wrong:?}");
            }
        }
        assert!(Message::of_frame(b"cmd=a;b;").is_err());
    }

    #[test]
    fn a_semicolon_in_a_value_is_doubled() {
        let whole = frame("kvs-put", &[("key", "a"), ("value", "b;c=d;;")]);
        let (prefix, body) = whole.split_at(PREFIX);
        assert_eq!(announced(prefix.try_into().unwrap()), Ok(body.len()));
        let message = Message::of_frame(body).unwrap();
        assert_eq!(message.get("value"), Some("b;c=d;;"));
        assert_eq!(line("put", &[("key", "a"), ("value", "b")]), b"cmd=put key=a value=b\n");
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes: Vec<u8>, prefix: [u8; PREFIX]) {
            let _ = Message::of_line(&bytes).map(|message| message.answering("set"));
            let _ = Message::of_frame(&bytes).map(|message| message.number("rank"));
            let _ = announced(prefix);
        }
    }
}
