//! The values of topology.yaml where it has a name, a list of names, or a list of things. Slurm
//! accepts one thing as a list of one, and numbers as names.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// A name.
pub struct Word(pub String);

/// A host list, or several in a list, joined by commas.
pub struct Names(pub String);

/// A list of things, or one of them.
pub struct Many<T>(pub Vec<T>);

/// Yes or no, in YAML's words.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Flag(pub bool);

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(WordVisitor)
    }
}

struct WordVisitor;

impl Visitor<'_> for WordVisitor {
    type Value = Word;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Word, E> {
        Ok(Word(text.to_string()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Word, E> {
        Ok(Word(number.to_string()))
    }
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(NamesVisitor)
    }
}

struct NamesVisitor;

impl<'de> Visitor<'de> for NamesVisitor {
    type Value = Names;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("names such as n[1-4], or a list of them")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Names, E> {
        Ok(Names(text.to_string()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Names, E> {
        Ok(Names(number.to_string()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Names, A::Error> {
        let mut names = String::new();
        while let Some(Word(name)) = list.next_element()? {
            if !names.is_empty() {
                names.push(',');
            }
            names += &name;
        }
        Ok(Names(names))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Many<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ManyVisitor(PhantomData))
    }
}

struct ManyVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ManyVisitor<T> {
    type Value = Many<T>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Many<T>, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(Many)
    }

    fn visit_map<A: MapAccess<'de>>(self, one: A) -> Result<Many<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(one)).map(|one| Many(vec![one]))
    }

    fn visit_u64<E: Error>(self, one: u64) -> Result<Many<T>, E> {
        T::deserialize(serde::de::value::U64Deserializer::new(one)).map(|one| Many(vec![one]))
    }
}

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(FlagVisitor)
    }
}

struct FlagVisitor;

impl Visitor<'_> for FlagVisitor {
    type Value = Flag;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("true or false")
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Flag, E> {
        Ok(Flag(flag))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Flag, E> {
        match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" => Ok(Flag(true)),
            "false" | "no" | "off" => Ok(Flag(false)),
            _ => Err(E::custom(format!("`{text}` is neither true nor false"))),
        }
    }
}
