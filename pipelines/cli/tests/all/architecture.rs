//! ARCHITECTURE.md can be read in ten minutes, and its links lead somewhere.

use std::path::Path;

use crate::support::root;

/// The relative links of a page, without what follows `#`.
fn links(page: &str) -> Vec<&str> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets
        .filter(|link| !link.contains("://") && !link.starts_with('#'))
        .map(|l| l.split('#').next().unwrap())
        .collect()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_architecture_is_a_page_of_ten_minutes() {
    let words = read(&root().join("ARCHITECTURE.md")).split_whitespace().count();
    assert!(words <= 2500, "ARCHITECTURE.md has {words} words; what a module does belongs into its documentation");
}

#[test]
fn links_of_the_pages_for_contributors_lead_somewhere() {
    let pages = ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "pipelines/README.md", "fuzz/README.md"];
    let mut seen = 0;
    for page in pages {
        let path = root().join(page);
        for link in links(&read(&path)) {
            assert!(path.parent().unwrap().join(link).exists(), "{page}: there is no `{link}`");
            seen += 1;
        }
    }
    assert!(seen >= 40, "{seen}");
}

#[test]
fn every_decision_is_linked_and_says_its_cost() {
    let architecture = read(&root().join("ARCHITECTURE.md"));
    let decisions: Vec<_> = std::fs::read_dir(root().join("engine/decisions")).unwrap().collect();
    assert!(decisions.len() >= 10);
    for decision in decisions {
        let path = decision.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(architecture.contains(&format!("(engine/decisions/{name})")), "{name} is not linked");
        let text = read(&path);
        for part in ["**Question.**", "**Decision.**", "**Cost.**"] {
            assert!(text.contains(part), "{name} has no {part}");
        }
        assert!(text.split_whitespace().count() <= 400, "{name} is more than a page");
    }
}
