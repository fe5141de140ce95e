"""Planning times of this checkout beside those of another commit."""

from roller_bench.figures import main


def test_another_commit_is_planned_in_turns(tmp_path, capsys):
    file = tmp_path / "few.csv"
    file.write_text("id,operator,params\nA,matmul,m=64 n=64 k=64\nB,relu,shape=8\n")
    assert main(["plan-against", "HEAD", str(file), "--devices", "v100", "--top", "2", "--repeat", "1"]) == 0
    assert "v100: 2 operators, top-2, CPU time: median" in capsys.readouterr().out


def test_no_such_commit(capsys):
    assert main(["plan-against", "absent"]) != 0
    assert "name a commit of this repository" in capsys.readouterr().err
