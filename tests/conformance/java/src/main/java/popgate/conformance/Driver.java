package popgate.conformance;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Runs named scenarios with the official Java client and tells what it saw, one JSON line per fact.
 *
 * <p>By hand: {@code Driver 127.0.0.1:8081 normal topic=T group=G}. By the tests: {@code Driver 127.0.0.1:8081},
 * then on standard input lines of {@code run ID SCENARIO key=value …} and {@code go ID}; the end of input ends
 * the process after the runs. Facts are those of the Python driver, by the same names.
 */
public final class Driver {
    private Driver() {}

    public static void main(String[] arguments) throws Exception {
        String endpoint = arguments[0];
        if (arguments.length > 1) {
            List<String> pairs = Arrays.asList(arguments).subList(2, arguments.length);
            perform(new Run("1", endpoint, parameters(pairs)), Scenarios.named(arguments[1]));
        } else {
            serve(endpoint);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0); // the client leaves threads behind that would hold the process
    }

    private static void serve(String endpoint) throws Exception {
        Map<String, Run> runs = new HashMap<>();
        List<Thread> threads = new ArrayList<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            List<String> words = Arrays.asList(line.trim().split(" +"));
            String id = words.get(1);
            if (words.get(0).equals("go")) {
                runs.get(id).go.release();
                continue;
            }
            Run run = new Run(id, endpoint, parameters(words.subList(3, words.size())));
            runs.put(id, run);
            Scenarios.Scenario scenario = Scenarios.named(words.get(2));
            Thread thread = new Thread(() -> perform(run, scenario), words.get(2));
            thread.setDaemon(true);
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private static void perform(Run run, Scenarios.Scenario scenario) {
        try {
            scenario.play(run);
            run.say("finished");
            run.closeAll();
            run.say("end");
        } catch (Throwable error) {
            run.crashed(error);
        }
    }

    private static Map<String, String> parameters(List<String> pairs) {
        Map<String, String> parameters = new HashMap<>();
        for (String pair : pairs) {
            int equals = pair.indexOf('=');
            parameters.put(pair.substring(0, equals), pair.substring(equals + 1));
        }
        return parameters;
    }
}
