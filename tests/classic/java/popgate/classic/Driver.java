package popgate.classic;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Runs named scenarios with RocketMQ's classic client and tells what it saw, one JSON line per fact.
 *
 * <p>By hand: {@code Driver 127.0.0.1:9876 tags topic=T group=G}. By the tests: {@code Driver 127.0.0.1:9876}, then
 * on standard input lines of {@code run ID SCENARIO key=value …}; the end of input ends the process after the runs.
 */
public final class Driver {
    private Driver() {}

    public static void main(String[] arguments) throws Exception {
        String nameServer = arguments[0];
        if (arguments.length > 1) {
            List<String> pairs = Arrays.asList(arguments).subList(2, arguments.length);
            perform(new Run("1", nameServer, parameters(pairs)), arguments[1]);
        } else {
            serve(nameServer);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0); // clients leave threads behind that would hold the process
    }

    private static void serve(String nameServer) throws Exception {
        Run first = new Run("driver", nameServer, Map.of());
        first.warmUp();
        first.say("ready");
        List<Thread> threads = new ArrayList<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            List<String> words = Arrays.asList(line.trim().split(" +"));
            Run run = new Run(words.get(1), nameServer, parameters(words.subList(3, words.size())));
            Thread thread = new Thread(() -> perform(run, words.get(2)), words.get(2));
            thread.setDaemon(true);
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private static void perform(Run run, String scenario) {
        try {
            Scenarios.named(scenario).play(run);
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
