//! The fast reader gives the same events as the full reader, or gives up.

use std::path::Path;

use proptest::prelude::*;

use super::block::Block;
use super::full::Full;
use super::{DEPTH_LIMIT, Event};
use crate::diagnostic::Position;

/// Events with the positions that callers use, and whether the fast reader understood the whole file.
fn fast(text: &str) -> (Vec<(Event<'_>, Position)>, bool) {
    let mut block = Block::new(text);
    let mut all = Vec::new();
    loop {
        match block.next() {
            Ok((Event::End, _)) => return (all, true),
            Ok(found) => all.push(found),
            Err(_) => return (all, false),
        }
    }
}

/// Returns whether the full reader gives the same events. Errors after the last event do not count.
fn agrees(text: &str) -> Result<bool, String> {
    let (events, whole) = fast(text);
    let mut full = Full::new(Path::new("w"), text);
    let mut depth = 0_u32;
    for (n, (event, position)) in events.iter().enumerate() {
        let (expected, place) = match full.next() {
            Ok(found) => found,
            // The full reader looks further ahead.
            Err(_) if !whole => return Ok(false),
            Err(e) => return Err(format!("event {n}: {e:?}")),
        };
        match event {
            Event::SequenceStart | Event::MappingStart => depth += 1,
            Event::SequenceEnd | Event::MappingEnd => depth -= 1,
            _ => {}
        }
        let ends = matches!(event, Event::SequenceEnd | Event::MappingEnd | Event::End);
        if *event != expected || (!ends && *position != place) {
            return Err(format!(
                "event {n}: {event:?} at {position:?}, not {expected:?} at {place:?}"
            ));
        }
        if depth > DEPTH_LIMIT {
            return Ok(false);
        }
    }
    if whole {
        match full.next() {
            Ok((Event::End, _)) => {}
            other => return Err(format!("after the end: {other:?}")),
        }
    }
    Ok(whole)
}

#[test]
fn output_of_programs_is_read_fast() {
    for text in [
        "a: b\n",
        "---\na: b",
        "# c\na:\n- b\n- c: d\n  e: 'f''g'\n- \"h \\\"i\\\"\\n\"\nj: []\nk: {}\n",
        "a:\n  b:\n  - - c\n    - d\n  - -e\n\n  f: -1\ng:\nh: '#: x'\ni: x#y:z\n",
        "- a:\n  - b\n  c:\n- d\n",
        "é: 'ü' \nb: c".trim_end_matches("x"),
        "\"quoted key\": é\n'k': v\nå: é\n",
        "jobs:\n-   type: job\n    id: 007\n",
    ] {
        let (_, whole) = fast(text);
        assert_eq!(agrees(text), Ok(whole), "{text}");
        assert!(whole || text.contains("' \n"), "{text}");
    }
}

#[test]
fn other_constructs_are_left_to_the_full_reader() {
    for text in [
        "",
        "---\n",
        "a",
        "a: b\n c",
        "a: b\n  c: d",
        "a: &x b\nc: *x\n",
        "a: |\n  x\n",
        "a: [b]\n",
        "a: b # c\n",
        "a:\tb\n",
        "a: b\r\n",
        "- a\nb: c\n",
        "a: b\n- c\n",
        "a: !!str b\n",
        "? a\n: b\n",
        "a: b: c\n",
        "a: 'b\n  c'\n",
        "a: b\n---\nc: d\n",
        "a: b\n...\n",
        "%YAML 1.2\n---\na: b\n",
        "-\n  a\n",
        "a:\n  b\n",
        " a: b\n",
        "a: \"\\x41\"\n",
        "a: b\u{85}c\n",
        "a : b\n",
        "{}: b\n",
        "a: 'b' c\n",
    ] {
        assert_eq!(
            agrees(text).map_err(|e| format!("{text}: {e}")),
            Ok(false),
            "{text}"
        );
    }
}

/// Lines in block style and similar-looking lines.
fn line() -> impl Strategy<Value = String> {
    let indent = 0_usize..4;
    let dashes = prop::sample::select(vec!["", "", "- ", "- - ", "-   ", "-"]);
    let text = prop_oneof![
        4 => "[a-c]{1,3}",
        1 => prop::sample::select(vec![
            "-a", "'b: c'", "'it''s'", "\"d\\\"e\"", "\"f # g\"", "[]", "{}", "é", "h#i", "j:k", "~", "''", "", "[l]",
            "&m n", "*m", "|", "o # p", "---", "#q", "'r", "s ", "? t", "u:", "-", "1.50", "\"\\u00e9\"", "!v", "\u{2028}",
        ]).prop_map(str::to_owned),
    ];
    let key = prop_oneof![
        3 => "[a-c]{1,2}: ?".prop_map(|key: String| key),
        1 => prop::sample::select(vec!["", "'k': ", "\"l\":", "é: ", "m:  ", "- ", "n :"]).prop_map(str::to_owned),
    ];
    (indent, dashes, key, text)
        .prop_map(|(indent, dashes, key, text)| format!("{}{dashes}{key}{text}", " ".repeat(indent)))
}

proptest! {
    #[test]
    fn readers_agree(lines in prop::collection::vec(line(), 0..12), newline: bool) {
        let mut text = lines.join("\n");
        if newline {
            text.push('\n');
        }
        if let Err(difference) = agrees(&text) {
            prop_assert!(false, "{}\n{}", difference, text);
        }
    }

    #[test]
    fn readers_agree_on_trees(tree in tree(3)) {
        let mut text = String::new();
        write_tree(&tree, 0, &mut text);
        prop_assert_eq!(agrees(&text).map_err(|e| format!("{e}\n{text}")), Ok(true), "{}", text);
    }
}

/// A value in the form that programs write.
#[derive(Clone, Debug)]
enum Tree {
    Text(String),
    Items(Vec<Tree>),
    Keys(Vec<(String, Tree)>),
}

fn tree(depth: u32) -> impl Strategy<Value = Tree> {
    let keys =
        |inner: BoxedStrategy<Tree>| prop::collection::vec(("[a-z]{1,4}", inner), 1..4).prop_map(Tree::Keys);
    let scalar = prop_oneof!["[a-zé0-9]{1,5}", "'[a-z:# ]{0,4}'", "\"[a-z:# -]{0,4}\""].prop_map(Tree::Text);
    let inner = scalar.prop_recursive(depth, 20, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(Tree::Items),
            keys(inner.boxed()),
        ]
    });
    keys(inner.boxed())
}

fn write_tree(tree: &Tree, indent: usize, text: &mut String) {
    match tree {
        Tree::Text(value) => {
            text.push_str(value);
            text.push('\n');
        }
        Tree::Items(items) => {
            for (n, item) in items.iter().enumerate() {
                if n > 0 {
                    text.push_str(&" ".repeat(indent));
                }
                text.push_str("- ");
                write_tree(item, indent + 2, text);
            }
        }
        Tree::Keys(keys) => {
            for (n, (key, value)) in keys.iter().enumerate() {
                if n > 0 {
                    text.push_str(&" ".repeat(indent));
                }
                text.push_str(key);
                text.push(':');
                match value {
                    Tree::Text(_) => text.push(' '),
                    _ => {
                        text.push('\n');
                        text.push_str(&" ".repeat(indent + 2));
                    }
                }
                write_tree(value, indent + 2, text);
            }
        }
    }
}
