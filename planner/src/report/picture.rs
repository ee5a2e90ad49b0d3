//! Pictures of workflows: DOT for graphviz, and SVG drawn here, in layers from top to bottom.

mod layers;

use std::fmt::Write as _;

use crate::exec::{Exec, Task};
use crate::graph::Graph;
use crate::model::Workflow;
use crate::request::{Format, Subject};

/// More jobs than this are drawn as groups: jobs of one level that run the same.
const DRAWN: usize = 300;

/// One box.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    label: String,
    /// Jobs that it stands for.
    jobs: u32,
    kind: &'static str,
}

/// Boxes and arrows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Drawing {
    title: String,
    nodes: Vec<Node>,
    /// From, to, how many edges it stands for.
    edges: Vec<(u32, u32, u32)>,
}

/// Kinds of jobs and their colours.
const KINDS: &[(&str, &str)] = &[
    ("compute", "#cfe8cf"),
    ("stage-in-tx", "#f6dfb8"),
    ("stage-out-tx", "#f3c9a5"),
    ("inter-site-tx", "#f7efb2"),
    ("registration", "#d9cfee"),
    ("create-dir", "#cddff2"),
    ("cleanup", "#e0e0e0"),
    ("chmod", "#e8f0f8"),
    ("unassigned", "#ffffff"),
];

fn colour(kind: &str) -> &'static str {
    let known = KINDS.iter().find(|(name, _)| *name == kind);
    known.map_or("#ffffff", |(_, colour)| *colour)
}

/// Draws a workflow.
pub(crate) fn draw(workflow: &Workflow, exec: &Exec, subject: Subject, format: Format) -> String {
    let drawing = match subject {
        Subject::Abstract => {
            let edges: Vec<(u32, u32)> = workflow.edges.iter().map(|&(p, c)| (p.0, c.0)).collect();
            let node = |n: u32| {
                let job = &workflow.jobs[n as usize];
                let label = format!("{}\n{}", job.id, job.transformation);
                (label, job.transformation.to_string(), "compute")
            };
            let title = format!("{} as it was written", workflow.label);
            Drawing::new(title, workflow.jobs.len(), &edges, node)
        }
        Subject::Executable => {
            let node = |n: u32| {
                let job = &exec.jobs[n as usize];
                let group = match job.task {
                    Task::Compute(k) => workflow.jobs[k.0 as usize].transformation.to_string(),
                    task => task.transformation().to_owned(),
                };
                (job.name.to_string(), group, job.task.kind().1)
            };
            let title = format!("{} as it will run", workflow.label);
            Drawing::new(title, exec.jobs.len(), &exec.edges, node)
        }
    };
    match format {
        Format::Dot => drawing.dot(),
        Format::Svg => drawing.svg(),
    }
}

impl Drawing {
    /// Of jobs, each with its label, what it runs, and its kind; edges without duplicates.
    fn new(
        title: String,
        jobs: usize,
        edges: &[(u32, u32)],
        node: impl Fn(u32) -> (String, String, &'static str),
    ) -> Self {
        if jobs <= DRAWN {
            let nodes = (0..jobs as u32).map(|n| {
                let (label, _, kind) = node(n);
                Node { label, jobs: 1, kind }
            });
            return Drawing {
                title,
                nodes: nodes.collect(),
                edges: edges.iter().map(|&(p, c)| (p, c, 1)).collect(),
            };
        }
        let graph = Graph::new(jobs, edges);
        let depths = graph.depths(&graph.topological().unwrap_or_default());
        let mut numbers: rustc_hash::FxHashMap<(u32, String, &'static str), u32> = Default::default();
        let mut nodes: Vec<Node> = Vec::new();
        let group: Vec<u32> = (0..jobs as u32)
            .map(|n| {
                let (_, name, kind) = node(n);
                let number = *numbers
                    .entry((depths[n as usize], name.clone(), kind))
                    .or_insert_with(|| {
                        nodes.push(Node {
                            label: name,
                            jobs: 0,
                            kind,
                        });
                        (nodes.len() - 1) as u32
                    });
                nodes[number as usize].jobs += 1;
                number
            })
            .collect();
        let mut counts: std::collections::BTreeMap<(u32, u32), u32> = Default::default();
        for &(p, c) in edges {
            *counts.entry((group[p as usize], group[c as usize])).or_default() += 1;
        }
        for node in &mut nodes {
            if node.jobs > 1 {
                let _ = write!(node.label, "\n{} jobs", node.jobs);
            }
        }
        Drawing {
            title,
            nodes,
            edges: counts.into_iter().map(|((p, c), count)| (p, c, count)).collect(),
        }
    }

    fn dot(&self) -> String {
        let quoted = |text: &str| {
            let escaped = text
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            format!("\"{escaped}\"")
        };
        let mut text = format!(
            "digraph workflow {{\n  label={};\n  labelloc=t;\n  node [shape=box, style=\"filled,rounded\", \
             fontname=\"sans-serif\"];\n",
            quoted(&self.title)
        );
        // Writing into a String cannot fail.
        for (n, node) in self.nodes.iter().enumerate() {
            let _ = writeln!(
                text,
                "  n{n} [label={}, fillcolor=\"{}\"];",
                quoted(&node.label),
                colour(node.kind)
            );
        }
        for (from, to, count) in &self.edges {
            let _ = match count {
                1 => writeln!(text, "  n{from} -> n{to};"),
                _ => writeln!(text, "  n{from} -> n{to} [label=\"{count}\", penwidth=2];"),
            };
        }
        text.push_str("}\n");
        text
    }

    fn svg(&self) -> String {
        let labels: Vec<&str> = self.nodes.iter().map(|node| node.label.as_str()).collect();
        let placed = layers::place(&labels, &self.edges);
        let used: Vec<&(&str, &str)> = KINDS
            .iter()
            .filter(|(kind, _)| self.nodes.iter().any(|node| node.kind == *kind))
            .collect();
        let legend = used.len() as f64 * 110.0 + 20.0;
        let (width, height) = (placed.width.max(legend).max(400.0), placed.height + HEAD);
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"11\">\n\
             <title>{title}</title>\n<defs><marker id=\"tip\" markerWidth=\"7\" markerHeight=\"7\" refX=\"6\" \
             refY=\"3\" orient=\"auto\"><path d=\"M0,0 L6,3 L0,6 z\" fill=\"#777\"/></marker></defs>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
             <text x=\"10\" y=\"18\" font-size=\"14\" font-weight=\"bold\">{title}</text>\n",
            title = escape(&self.title),
        );
        // Writing into a String cannot fail.
        for (n, (kind, fill)) in used.into_iter().enumerate() {
            let x = 10 + n * 110;
            let _ = writeln!(
                text,
                "<rect x=\"{x}\" y=\"28\" width=\"12\" height=\"12\" rx=\"2\" fill=\"{fill}\" stroke=\"#777\"/>\
                 <text x=\"{}\" y=\"38\">{kind}</text>",
                x + 16
            );
        }
        let _ = writeln!(text, "<g transform=\"translate(0,{HEAD})\">");
        for (path, &(_, _, count)) in placed.paths.iter().zip(&self.edges) {
            let width = if count > 1 { 2 } else { 1 };
            let _ = write!(
                text,
                "<path fill=\"none\" stroke=\"#777\" stroke-width=\"{width}\" marker-end=\"url(#tip)\" d=\"{path}\">"
            );
            if count > 1 {
                let _ = write!(text, "<title>{count} dependencies</title>");
            }
            text.push_str("</path>\n");
        }
        for (node, spot) in self.nodes.iter().zip(&placed.boxes) {
            let _ = write!(
                text,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"5\" fill=\"{}\" \
                 stroke=\"#555\"><title>{}</title></rect>",
                spot.x,
                spot.y,
                spot.width,
                layers::BOX_HEIGHT,
                colour(node.kind),
                escape(&node.label),
            );
            let lines: Vec<&str> = node.label.lines().collect();
            for (k, line) in lines.iter().enumerate() {
                let y = spot.y
                    + layers::BOX_HEIGHT / 2.0
                    + 4.0
                    + (k as f64 - (lines.len() as f64 - 1.0) / 2.0) * 13.0;
                let _ = write!(
                    text,
                    "<text x=\"{:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{}</text>",
                    spot.x + spot.width / 2.0,
                    escape(layers::shown(line))
                );
            }
            text.push('\n');
        }
        text.push_str("</g>\n</svg>\n");
        text
    }
}

/// Room for title and legend.
const HEAD: f64 = 50.0;

/// Text of XML; characters that XML cannot have are left out.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' => escaped.push('\n'),
            c if c.is_control() => {}
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(jobs: usize) -> Drawing {
        let edges: Vec<(u32, u32)> = (1..jobs as u32).map(|n| (0, n)).collect();
        let node = |n: u32| (format!("job <{n}>"), format!("run{}", n % 2), "compute");
        Drawing::new("a & b".into(), jobs, &edges, node)
    }

    #[test]
    fn few_jobs_are_drawn_one_by_one() {
        let svg = chain(5).svg();
        assert_eq!(svg.matches("rx=\"5\"").count(), 5);
        assert_eq!(svg.matches("marker-end").count(), 4);
        assert!(svg.contains("a &amp; b") && svg.contains("job &lt;3&gt;"));
        let mut reader = quick_xml::Reader::from_str(&svg);
        loop {
            match reader.read_event() {
                Ok(quick_xml::events::Event::Eof) => break,
                event => assert!(event.is_ok(), "{event:?}"),
            }
        }
    }

    #[test]
    fn many_jobs_are_drawn_as_groups() {
        let drawing = chain(1001);
        let labels: Vec<&str> = drawing.nodes.iter().map(|n| n.label.as_str()).collect();
        assert_eq!(labels, ["run0", "run1\n500 jobs", "run0\n500 jobs"]);
        assert_eq!(drawing.edges, [(0, 1, 500), (0, 2, 500)]);
        assert!(drawing.dot().contains("n0 -> n1 [label=\"500\", penwidth=2];"));
    }

    #[test]
    fn quotes_in_dot() {
        let drawing = Drawing {
            title: "a\"b\\".into(),
            ..Drawing::default()
        };
        assert!(drawing.dot().contains(r#"label="a\"b\\";"#));
        assert!(drawing.svg().contains("</svg>"));
    }
}
